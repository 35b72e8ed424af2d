//! Bytes that a client was lent and has not read yet, and a tier whose memory others have taken.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{images::Image, registry::FakeRegistry};
use pierhead_tests::{
    namespace,
    pierhead::{Options, Pierhead},
    wait,
};

use super::{drained, memory, number, region, section, stat};
use crate::ask::{behind, get, pull};

/// The layer that comes last is the large one: small enough for the queues of a connection to hold all of it.
fn image(seed: u64) -> Image {
    Image::random(seed, &[100_000, 2_000_000])
}

/// Asks for a blob, and reads no more than the first byte of the answer.
fn begin(pierhead: &Pierhead, path: &str) -> Result<TcpStream> {
    let mut client = TcpStream::connect(pierhead.address())?;
    let host = pierhead.address();
    write!(
        client,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )?;
    let mut first = [0];
    client.read_exact(&mut first)?;
    Ok(client)
}

#[test]
fn a_client_that_stops_reading_gets_its_own_blob_when_its_place_has_another() -> Result<()> {
    let folder = memory()?;
    let tier = section(&region(folder.path()), "32MiB", "");
    let (hub, pierhead) = behind(FakeRegistry::builder(), Options::new().config(&tier))?;
    let slow = image(1);
    let layer = slow.blobs.last().context("no layer")?;
    let path = format!("/v2/library/app/blobs/{}", layer.digest);
    hub.push("library/app", "1", &slow);
    pull(&pierhead, "library/app", &slow)?;
    drained(&pierhead)?;
    // A reader that comes while an earlier one has not let go shares its handle, which may be the disk's or that of the fill:
    // only one that opens the tier's copy is a hit there.
    let mut client = wait::until("a reader that is sent to from the tier", || {
        let before = number(&stat(&pierhead)?, "hits")?;
        let client = begin(&pierhead, &path)?;
        let is_hit = number(&stat(&pierhead)?, "hits")? > before;
        Ok(is_hit.then_some(client))
    })?;
    // Twice what the tier holds.
    for seed in 2..32 {
        let (name, other) = (format!("library/app{seed}"), image(seed));
        hub.push(&name, "1", &other);
        pull(&pierhead, &name, &other)?;
        drained(&pierhead)?;
    }
    let mut answer = Vec::new();
    client.read_to_end(&mut answer)?;
    let ends = answer.windows(4).position(|it| it == b"\r\n\r\n");
    let body = &answer[ends.context("no head")? + 4..];
    ensure!(body.len() == layer.bytes.len(), "{} bytes", body.len());
    ensure!(body == &layer.bytes[..], "another blob's bytes");
    // Or nothing was tried: by then it had left the tier.
    // The handle of the slow reader may live a moment longer than its connection.
    wait::until("a reader that is sent to from the disk", || {
        let disk = number(&stat(&pierhead)?, "disk_hits")?;
        ensure!(
            get(pierhead.address(), &path)?.body == layer.bytes,
            "other bytes"
        );
        Ok((number(&stat(&pierhead)?, "disk_hits")? > disk).then_some(()))
    })
}

/// Takes all that a file system has left.
fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    let piece = vec![1; 64 << 10];
    loop {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[test]
fn memory_that_others_took_meanwhile_costs_what_is_stored_there_and_no_more() -> Result<()> {
    let folder = memory()?;
    let at = folder.path();
    let words = namespace::mounted(&format!("mount -t tmpfs -o size=36m none {}", at.display()));
    let tier = section(&region(at), "32MiB", "");
    let options = Options::new().config(&tier).inside(words);
    let (hub, mut pierhead) = behind(FakeRegistry::builder(), options)?;
    let most = format!("{}B", number(&stat(&pierhead)?, "most")?);
    let pulled = |pierhead: &Pierhead, seed: u64| -> Result<u64> {
        let (name, image) = (format!("library/app{seed}"), image(seed));
        hub.push(&name, "1", &image);
        pull(pierhead, &name, &image)?;
        let stat = drained(pierhead)?;
        // And once more, from wherever it is now.
        pull(pierhead, &name, &image)?;
        number(&stat, "staged")
    };
    let first = pulled(&pierhead, 1)?;
    ensure!(first > 2_000_000, "{first}");
    pierhead.cache(&["tier", "set-limit", "0"])?;
    let inside = Path::new("/proc")
        .join(pierhead.daemon().pid().to_string())
        .join("root")
        .join(at.strip_prefix("/")?);
    let filler = inside.join("filler");
    fill(&filler)?;
    pierhead.cache(&["tier", "set-limit", &most])?;
    let mut staged = first;
    for seed in 2..10 {
        staged = pulled(&pierhead, seed)?;
    }
    ensure!(
        pierhead
            .log()
            .contains("the fast tier failed: this fill continues on the disk")
            || staged < first + 8 * 2_000_000,
        "the memory was there all the same"
    );
    std::fs::remove_file(&filler)?;
    for seed in 10..13 {
        pulled(&pierhead, seed)?;
    }
    let after = number(&stat(&pierhead)?, "staged")?;
    ensure!(after >= staged + 2_000_000, "{staged}, then {after}");
    for seed in 1..13 {
        let name = format!("library/app{seed}");
        pull(&pierhead, &name, &image(seed))?;
    }
    Ok(())
}
