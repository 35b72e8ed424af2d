//! Checks the memory of pierhead while hundreds of clients request large documents and read
//! nothing.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::registry::{FakeRegistry, Fault};
use pierhead_tests::{pierhead::Options, wait};

use crate::requests::{get, start_in_front};

/// Number of clients for each kind of document.
const CLIENTS: usize = 200;
/// Maximum resident memory in bytes. If each client had a response in memory, lists would take 1.4
/// GB and manifests 800 MB. pierhead uses about 60 MB at the peak. glibc retains the rest of large
/// allocations.
const MAX_MEMORY: u64 = 128 << 20;

/// Sends a request and reads only the status of the response.
fn request_without_reading(address: SocketAddr, path: &str) -> Result<(TcpStream, u16)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(wait::TIME_LIMIT))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).context("no answer")?;
    let status = std::str::from_utf8(&head)?.rsplit(' ').next();
    let status = status.context("no status")?.parse()?;
    Ok((stream, status))
}

/// Many concurrent clients request tag lists of 7 MB and uncached manifests of 4 MB, and do not
/// read the responses.
#[test]
fn unread_documents_hold_no_memory() -> Result<()> {
    let options = Options::new().config("[limits]\nresponse_timeout = \"60s\"\ndownloads = 200");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let tags: Vec<_> = (0..500_000).map(|nth| format!("\"v{nth:010}\"")).collect();
    let list = format!("{{\"name\":\"library/app\",\"tags\":[{}]}}", tags.join(","));
    hub.inject(Fault::Replace(list.into()).on("/v2/library/app/tags/list"));
    let media_type = "application/vnd.oci.image.index.v1+json";
    let filler = "x".repeat((4 << 20) - 1000);
    let manifest = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"{media_type}\",\"manifests\":[],\"annotations\":{{\"a\":\"{filler}\"}}}}"
    );
    let digest = hub.put_manifest("library/app", media_type, manifest);
    for nth in 0..CLIENTS {
        hub.tag("library/app", &format!("v{nth}"), digest);
    }
    let address = pierhead.address();
    wait::try_until("the list", || {
        let list = get(address, "/v2/library/app/tags/list?n=1")?;
        Ok((list.status == 200).then_some(()))
    })?;
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|nth| (nth, "/v2/library/app/tags/list".to_owned()))
        .chain((0..CLIENTS).map(|nth| (nth, format!("/v2/library/app/manifests/v{nth}"))))
        .map(|(_, path)| std::thread::spawn(move || request_without_reading(address, &path)))
        .collect();
    let mut streams = Vec::new();
    let mut served = 0;
    for client in clients.drain(..) {
        let (stream, status) = client.join().expect("no panic")?;
        ensure!(matches!(status, 200 | 503), "{status}");
        served += usize::from(status == 200);
        streams.push(stream);
    }
    // Most requests of both kinds must succeed, because refused requests use no memory.
    ensure!(served > CLIENTS, "only {served} requests were served");
    let (now, peak) = pierhead.memory()?;
    eprintln!(
        "{served} of {} served; {now} bytes resident, {peak} at the peak",
        streams.len()
    );
    ensure!(peak < MAX_MEMORY, "{peak} bytes at the peak");
    Ok(())
}
