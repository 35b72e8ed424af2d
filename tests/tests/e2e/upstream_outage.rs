//! End-to-end tests of an upstream outage (circuit breaker, log lines, negative cache), and of many
//! connections (limits, memory).

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    images::{Image, random_bytes},
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{
    paths,
    pierhead::{Options, Pierhead},
    wait,
};

use crate::requests::{get, get_at_once, get_until_ok, pull, start_in_front};

/// The sum of all metric lines that begin with `name`.
fn metric(pierhead: &Pierhead, name: &str) -> Result<u64> {
    let response = get(pierhead.admin(), "/metrics")?;
    let text = std::str::from_utf8(&response.body)?;
    let lines = text.lines().filter(|line| line.starts_with(name));
    let values: Vec<u64> = lines
        .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
        .collect();
    ensure!(!values.is_empty(), "no {name} in {text}");
    Ok(values.iter().sum())
}

const STATE: &str = "pierhead_remote_upstream_state{";

#[test]
fn the_circuit_opens_in_an_outage_and_closes_after_it() -> Result<()> {
    let options = Options::new().config("[tags]\nttl = \"0s\"");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let image = Image::random(1, &[1000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    assert_eq!(metric(&pierhead, STATE)?, 0);

    hub.inject(Fault::Reset.on("*").before_auth());
    let tag = "/v2/library/app/manifests/1";
    wait::until("an open breaker", || {
        assert_eq!(get(pierhead.address(), tag)?.status, 200, "no stale copy");
        Ok((metric(&pierhead, STATE)? == 2).then_some(()))
    })?;
    // While the circuit is open, only probes reach the upstream, with at least a second between two
    // probes.
    hub.clear_requests();
    let started = Instant::now();
    for nth in 0..100 {
        let path = format!("/v2/library/none/manifests/{nth}");
        let status = get(pierhead.address(), &path)?.status;
        assert_eq!(status, 503, "{path}");
    }
    let probes = 1 + started.elapsed().as_secs();
    let requested = hub.count(|_| true) as u64;
    // A failed probe is one request and its retries.
    assert!(
        requested <= 4 * probes,
        "{requested} requests to a dead upstream"
    );
    assert_eq!(pierhead.log().matches("upstream unhealthy").count(), 1);

    hub.clear_faults();
    wait::until("a closed breaker", || {
        get(pierhead.address(), tag)?;
        Ok((metric(&pierhead, STATE)? == 0).then_some(()))
    })?;
    let log = pierhead.log();
    for line in ["upstream unhealthy", "upstream healthy again"] {
        assert_eq!(log.matches(line).count(), 1, "{line}:\n{log}");
    }
    assert_eq!(get(pierhead.address(), tag)?.header("x-cache"), Some("HIT"));
    Ok(())
}

/// A client requests an image before the image is pushed, and gets it soon after the push.
#[test]
fn a_pushed_image_is_visible_within_seconds_after_a_404() -> Result<()> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let image = Image::random(2, &[1000]);
    let blob = format!("/v2/library/app/blobs/{}", image.blobs[1].digest);
    for path in ["/v2/library/app/manifests/1", &blob] {
        for _ in 0..20 {
            assert_eq!(get(pierhead.address(), path)?.status, 404);
        }
    }
    // pierhead sends each request to the upstream once, and retries the request once.
    let requested = hub.count(|_| true);
    assert!(requested <= 4, "{requested} requests for a missing image");
    hub.push("library/app", "1", &image);
    let pushed = Instant::now();
    for path in ["/v2/library/app/manifests/1", &blob] {
        get_until_ok(pierhead.address(), path)?;
    }
    let took = pushed.elapsed();
    // pierhead caches a 404 for five seconds. The rest of the time limit is for a busy machine.
    assert!(took < Duration::from_secs(15), "seen after {took:?}");
    Ok(())
}

/// When a client reaches its connection limit, pierhead closes the longest idle connection of this
/// client.
#[test]
fn a_client_at_its_limit_loses_its_longest_idle_connection() -> Result<()> {
    let options = Options::new().config("[limits]\nconnections = 32\n[tags]\nttl = \"1h\"");
    let (_hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let connect = || -> Result<(TcpStream, String)> {
        let mut stream = TcpStream::connect(pierhead.address())?;
        stream.set_read_timeout(Some(wait::TIMEOUT))?;
        write!(stream, "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n")?;
        let mut head = vec![0; 512];
        let read = stream.read(&mut head).context("no answer")?;
        Ok((stream, String::from_utf8_lossy(&head[..read]).into_owned()))
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        let (stream, head) = connect()?;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        held.push(stream);
    }
    // The daemon notes the end of a response after it has sent it. More requests on the other
    // connections give the daemon the time to see that the first connection is idle.
    for _ in 0..10 {
        for stream in &mut held[1..] {
            write!(stream, "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n")?;
            let mut head = [0; 512];
            let read = stream.read(&mut head).context("no response")?;
            assert!(head[..read].starts_with(b"HTTP/1.1 200"));
        }
    }
    let (_fifth, head) = connect()?;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut rest = Vec::new();
    held[0]
        .read_to_end(&mut rest)
        .context("the connection is still open")?;
    write!(held[1], "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let mut head = [0; 12];
    held[1].read_exact(&mut head)?;
    assert_eq!(&head, b"HTTP/1.1 200", "only one connection was closed");
    Ok(())
}

/// Memory of pierhead with a thousand idle connections and two hundred running downloads.
#[test]
fn many_connections_take_limited_memory() -> Result<()> {
    const ACTIVE: usize = 200;
    const SIZE: usize = 2 << 20;
    let options = Options::new().config("[limits]\nconnections = 16384");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let digest = hub.put_blob("library/app", random_bytes(3, SIZE));
    let gate = Gate::new();
    hub.inject(Fault::GateBody(SIZE as u64 / 2, gate.clone()).on_blob(&digest));
    let mut idle = Vec::new();
    for _ in 0..1000 {
        let mut stream = TcpStream::connect(pierhead.address())?;
        write!(stream, "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        ensure!(head.ends_with(b"200"), "an idle connection was refused");
        idle.push(stream);
    }
    let path = format!("/v2/library/app/blobs/{digest}");
    let got = get_at_once(pierhead.address(), &path, ACTIVE, || gate.release())?;
    assert_eq!(got, vec![digest.to_string(); ACTIVE]);
    assert_eq!(hub.gets_of(&digest), 1);
    let (_, peak) = pierhead.memory()?;
    // The limit is 64 MB for a release build. The code of a debug build is far larger.
    let bound = if paths::is_release()? { 64 } else { 128 };
    assert!(peak <= bound * 1_000_000, "{peak} bytes at the peak");
    drop(idle);
    Ok(())
}
