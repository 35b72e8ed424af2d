//! End-to-end test with a name server that does not respond: clients that request unresolvable
//! registries do not delay other clients.

use std::{
    collections::HashSet,
    fs,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{images::Image, registry::FakeRegistry};
use pierhead_tests::{
    namespace, paths,
    pierhead::Options,
    tool::{Missing, or_skip},
    wait,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpSocket, TcpStream},
};

use crate::requests::{get, pull, start_in_front, wait_for_commit};

/// Address of the name server, which no other test uses.
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(127, 83, 5, 3);
/// Number of client addresses.
const CLIENTS: u8 = 2;
/// Requests per client, more than the queue of one client.
const REQUESTS: usize = 70;

/// The first label of the queried name.
fn label(question: &[u8]) -> Option<&[u8]> {
    let length = usize::from(*question.get(12)?);
    question.get(13..13 + length)
}

/// Sends a request from this address without waiting for the response.
async fn ask(from: Ipv4Addr, to: SocketAddr, path: &str) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(to).await?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}

#[test]
fn a_silent_name_server_does_not_delay_cached_images() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let bound = UdpSocket::bind((NAME_SERVER, 53));
    let bound = bound.map_err(|error| Missing::new(format!("port 53 of loopback: {error}")));
    let Some(server) = or_skip(bound) else {
        return Ok(());
    };
    let folder = paths::scratch("resolver")?;
    let conf = folder.path().join("resolv.conf");
    writeln!(fs::File::create(&conf)?, "nameserver {NAME_SERVER}")?;
    let mount = format!("mount --bind {} /etc/resolv.conf", conf.display());
    let options = Options::new().inside(namespace::mounted(&mount));
    let (_hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let image = Image::random(1, &[1 << 20]);
    _hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    let layer = image.blobs[1].digest.to_string();
    wait_for_commit(&pierhead, &layer)?;

    let runtime = tokio::runtime::Runtime::new()?;
    let to = pierhead.address();
    let _waiting = runtime.block_on(async {
        let mut waiting = Vec::new();
        for client in 2..2 + CLIENTS {
            for nth in 0..REQUESTS {
                let path = format!("/v2/app/manifests/1?ns=r{nth}-{client}.example");
                waiting.push(ask(Ipv4Addr::new(127, 0, 0, client), to, &path).await?);
            }
        }
        anyhow::Ok(waiting)
    })?;
    // The test waits for as many queried names as pierhead has threads for blocking work.
    server.set_read_timeout(Some(wait::TIME_LIMIT))?;
    let (mut names, mut buffer) = (HashSet::new(), [0; 512]);
    while names.len() < 64 {
        let length = server.recv(&mut buffer).context("a question")?;
        names.extend(label(&buffer[..length]).map(<[u8]>::to_vec));
    }
    let paths = [
        "/v2/library/app/manifests/1".to_owned(),
        format!("/v2/library/app/manifests/{}", image.root),
        format!("/v2/library/app/blobs/{layer}"),
    ];
    for path in paths.iter().cycle().take(30) {
        let response = get(to, path)?;
        ensure!(response.status == 200, "{path}: {}", response.status);
        assert_eq!(response.header("x-cache"), Some("HIT"), "{path}");
    }
    assert_eq!(get(pierhead.admin(), "/readyz")?.status, 200);
    let metric = |start: &str| -> Result<bool> {
        let metrics = get(pierhead.admin(), "/metrics")?;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let mut lines = text.lines().filter(|line| line.starts_with(start));
        Ok(lines.any(|line| !line.ends_with(" 0")))
    };
    // Each client may have a limited number of waiting requests, including requests for tags.
    let limit = "pierhead_proxy_limited_total{limit=\"downloads_per_client\"}";
    ensure!(metric(limit)?, "no client reached its limit");
    wait::try_until("lookups that time out", || {
        let timeout = metric("pierhead_dns_lookups_total{result=\"timeout\"}")?;
        Ok(timeout.then_some(()))
    })
}
