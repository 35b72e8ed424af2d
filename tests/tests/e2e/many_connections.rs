//! End-to-end tests of many connections to pierhead: the limit of connections per client, and the
//! memory of a thousand connections.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    images::random_bytes,
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{paths, pierhead::Options, wait};

use crate::requests::{get_at_once, start_in_front};

/// When a client reaches its connection limit, pierhead closes the longest idle connection of this
/// client.
#[test]
fn a_client_at_its_limit_loses_its_longest_idle_connection() -> Result<()> {
    let options = Options::new().config("[limits]\nconnections = 32\n[tags]\nttl = \"1h\"");
    let (_hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let connect = || -> Result<(TcpStream, String)> {
        let mut stream = TcpStream::connect(pierhead.address())?;
        stream.set_read_timeout(Some(wait::TIME_LIMIT))?;
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
