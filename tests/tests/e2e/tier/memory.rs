//! End-to-end tests of the memory of the fast tier: the eviction of a blob that a slow client still
//! reads, and a tmpfs that other programs fill.

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

use super::{memory_folder, number, region, section, stat, wait_for_write_back};
use crate::requests::{get, pull, start_in_front};

/// The last layer is the largest one, and still small enough for the socket buffers of a
/// connection.
fn image(seed: u64) -> Image {
    Image::random(seed, &[100_000, 2_000_000])
}

/// Requests a blob and reads only the first byte of the response.
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
fn a_slow_client_gets_its_own_blob_after_the_memory_is_reused() -> Result<()> {
    let folder = memory_folder()?;
    let tier = section(&region(folder.path()), "32MiB", "");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), Options::new().config(&tier))?;
    let slow = image(1);
    let layer = slow.blobs.last().context("no layer")?;
    let path = format!("/v2/library/app/blobs/{}", layer.digest);
    hub.push("library/app", "1", &slow);
    pull(&pierhead, "library/app", &slow)?;
    wait_for_write_back(&pierhead)?;
    // A response may read from a file handle that an earlier response opened, on the disk or in a
    // running fill. Only a response that opens the copy on the tier counts as a hit of the tier.
    let mut client = wait::try_until("a reader that is sent to from the tier", || {
        let before = number(&stat(&pierhead)?, "hits")?;
        let client = begin(&pierhead, &path)?;
        let is_hit = number(&stat(&pierhead)?, "hits")? > before;
        Ok(is_hit.then_some(client))
    })?;
    // Pulls twice as many bytes as the tier can store, so that the tier evicts the blob.
    for seed in 2..32 {
        let (name, other) = (format!("library/app{seed}"), image(seed));
        hub.push(&name, "1", &other);
        pull(&pierhead, &name, &other)?;
        wait_for_write_back(&pierhead)?;
    }
    let mut response = Vec::new();
    client.read_to_end(&mut response)?;
    let ends = response.windows(4).position(|it| it == b"\r\n\r\n");
    let body = &response[ends.context("no head")? + 4..];
    ensure!(body.len() == layer.bytes.len(), "{} bytes", body.len());
    ensure!(body == &layer.bytes[..], "another blob's bytes");
    // Checks that the blob has left the tier, because otherwise the test would prove nothing. The
    // file handle of the slow response may stay open a moment longer than the connection.
    wait::try_until("a reader that is sent to from the disk", || {
        let disk = number(&stat(&pierhead)?, "disk_hits")?;
        ensure!(
            get(pierhead.address(), &path)?.body == layer.bytes,
            "other bytes"
        );
        Ok((number(&stat(&pierhead)?, "disk_hits")? > disk).then_some(()))
    })
}

/// Fills the free space of a file system.
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
fn a_full_tmpfs_loses_only_the_blobs_of_the_tier() -> Result<()> {
    let folder = memory_folder()?;
    let at = folder.path();
    let words = namespace::mounted(&format!("mount -t tmpfs -o size=36m none {}", at.display()));
    let tier = section(&region(at), "32MiB", "");
    let options = Options::new().config(&tier).inside(words);
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let most = format!("{}B", number(&stat(&pierhead)?, "most")?);
    let pulled = |pierhead: &Pierhead, seed: u64| -> Result<u64> {
        let (name, image) = (format!("library/app{seed}"), image(seed));
        hub.push(&name, "1", &image);
        pull(pierhead, &name, &image)?;
        let stat = wait_for_write_back(pierhead)?;
        // Pulls once more, from the disk or the tier.
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
        "the tmpfs was not full"
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
