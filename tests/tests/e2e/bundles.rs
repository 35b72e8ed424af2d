//! `pierhead pull` and its kin: bundles from a real pierhead into a real store.

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    images::{Image, random_bytes},
    registry::FakeRegistry,
};
use pierhead_tests::{
    layout::architecture,
    pierhead::{Options, Pierhead},
    place,
    tool::{self, or_skip},
};
use serde_json::Value;

use crate::ask::behind;

const MIB: usize = 1 << 20;

/// Names and contents of one layer.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Text that compresses by half, as programs do.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let digits = b"0123456789abcdef";
    let random = random_bytes(seed, len);
    random
        .iter()
        .map(|byte| digits[usize::from(byte & 15)])
        .collect()
}

/// 40 small files, a large one, and a program that is another in each version.
pub(crate) fn files(version: u64) -> Files {
    let mut files: Files = (0..40)
        .map(|nth| (format!("usr/share/doc-{nth}"), content(nth, 3000)))
        .collect();
    files.push(("usr/lib/large.so".to_owned(), content(100, 5 * MIB)));
    files.push(("usr/bin/app".to_owned(), content(200 + version, 20_000)));
    files
}

pub(crate) fn image(files: &Files) -> Image {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o755);
        header.set_size(bytes.len() as u64);
        header.set_mtime(1_767_225_600);
        tar.append_data(&mut header, path, &bytes[..])
            .expect("memory takes everything");
    }
    let tar = tar.into_inner().expect("memory takes everything");
    Image::of_tars(architecture(), &[tar])
}

/// A registry with both versions, and a pierhead in front of it.
pub(crate) fn stage(
    options: Options,
) -> Result<(pierhead_testkit::registry::Background, Pierhead)> {
    let (hub, pierhead) = behind(FakeRegistry::builder(), options)?;
    for version in [1, 2] {
        hub.push("library/app", &version.to_string(), &image(&files(version)));
    }
    Ok((hub, pierhead))
}

/// Runs `pierhead pull --json`; what it printed, or what it said.
pub(crate) fn pull(via: &str, version: &str, store: &Path, more: &[&str]) -> Result<Value> {
    let mut command = Command::new(place::pierhead()?);
    let image = format!("app:{version}");
    command
        .args(["pull", &image, "--json", "--via", via, "--into"])
        .arg(store)
        .args(more);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| said)
}

pub(crate) fn http(address: SocketAddr) -> String {
    format!("http://{address}")
}

pub(crate) fn same(root: &Path, expected: &Files) -> Result<()> {
    for (path, bytes) in expected {
        let found = fs::read(root.join(path)).with_context(|| path.clone())?;
        ensure!(found == *bytes, "{path} has other bytes");
    }
    Ok(())
}

#[test]
fn an_update_brings_what_changed_and_no_more() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    let root = folder.path().join("root");
    let output = root.to_str().context("UTF-8")?;

    let fresh = pull(&via, "1", &store, &[])?;
    assert_eq!(fresh["method"], "bundle", "{fresh}");
    assert_eq!(fresh["contents"]["full"], 42, "{fresh}");
    let received = |report: &Value| report["bytes_received"].as_u64().context("bytes_received");
    ensure!(received(&fresh)? > 2_000_000, "{fresh}");

    let update = pull(&via, "2", &store, &["--as", "rootfs", "--output", output])?;
    assert_eq!(update["method"], "bundle", "{update}");
    ensure!(update["contents"]["reused"].as_u64() > Some(0), "{update}");
    ensure!(
        received(&update)? < received(&fresh)? / 2,
        "{fresh} {update}"
    );
    same(&root, &files(2))?;

    // By digest, and whole: nobody is asked.
    let digest = update["digest"].as_str().context("a digest")?;
    let mut again = Command::new(place::pierhead()?);
    again.args([
        "pull",
        &format!("app@{digest}"),
        "--json",
        "--via",
        "http://127.0.0.1:1",
        "--into",
    ]);
    let again = again.arg(&store).output()?;
    assert!(
        again.status.success(),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );

    // Another store builds upon the first one without writing to it.
    let other = folder.path().join("other");
    let from = store.to_str().context("UTF-8")?;
    let built = pull(&via, "1", &other, &["--have-from", from])?;
    ensure!(received(&built)? < received(&fresh)? / 2, "{built}");
    Ok(())
}

/// Passes connections on, the first `cuts` of them up to so many bytes of answers.
fn cutting(
    target: SocketAddr,
    after: usize,
    cuts: usize,
) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    // It ends with the process of the test.
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let mut left = if number < cuts { after } else { usize::MAX };
            thread::spawn(move || -> std::io::Result<()> {
                let server = TcpStream::connect(target)?;
                let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
                thread::spawn(move || std::io::copy(&mut from, &mut to));
                let (mut from, mut to) = (server, client);
                let mut piece = vec![0; 16 << 10];
                while left > 0 {
                    let read = from.read(&mut piece)?;
                    if read == 0 {
                        break;
                    }
                    let part = read.min(left);
                    to.write_all(&piece[..part])?;
                    left -= part;
                }
                let _ = from.shutdown(Shutdown::Both);
                to.shutdown(Shutdown::Both)
            });
        }
    });
    Ok((address, seen))
}

#[test]
fn a_pull_that_is_cut_goes_on() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let whole = pull(
        &http(pierhead.address()),
        "1",
        &folder.path().join("whole"),
        &[],
    )?;
    let whole = whole["bytes_received"].as_u64().context("bytes_received")?;
    for connections in ["1", "3"] {
        let store = folder.path().join(connections);
        let (relay, seen) = cutting(pierhead.address(), MIB, 2)?;
        let report = pull(
            &http(relay),
            "1",
            &store,
            &["--connections", connections, "--as", "rootfs"],
        )?;
        ensure!(seen.load(Ordering::SeqCst) > 2, "nothing was cut");
        let received = report["bytes_received"]
            .as_u64()
            .context("bytes_received")?;
        ensure!(received < whole * 3, "{received} bytes for {whole}");
        same(&store.join("rootfs"), &files(1))?;
    }
    Ok(())
}

/// What becomes of a request on its way, and of what comes back; the number is the connection's.
type Edit = fn(usize, &mut [u8]);

/// Passes connections on, each piece of what is said as it was edited.
/// Where, and how many there were.
fn editing(
    target: SocketAddr,
    requests: Edit,
    answers: Edit,
) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    // It ends with the process of the test.
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || -> std::io::Result<()> {
                let server = TcpStream::connect(target)?;
                let (from, to) = (client.try_clone()?, server.try_clone()?);
                thread::spawn(move || pass(from, to, number, requests));
                pass(server, client, number, answers)
            });
        }
    });
    Ok((address, seen))
}

fn pass(mut from: TcpStream, mut to: TcpStream, number: usize, edit: Edit) -> std::io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            return to.shutdown(Shutdown::Write);
        }
        edit(number, &mut piece[..read]);
        to.write_all(&piece[..read])?;
    }
}

fn place_of(bytes: &[u8], text: &str) -> Option<usize> {
    bytes
        .windows(text.len())
        .position(|at| at == text.as_bytes())
}

/// Blanks what a server that knows no shares would not read.
fn without_share(_: usize, bytes: &mut [u8]) {
    if let Some(at) = place_of(bytes, ",\"share\":[") {
        let len = bytes[at..]
            .iter()
            .position(|byte| *byte == b']')
            .unwrap_or(0);
        bytes[at..=at + len].fill(b' ');
    }
}

/// Blanks what a server that knows shares, and no pieces of a header, would not read.
fn without_pieces(_: usize, bytes: &mut [u8]) {
    let text = ",\"pieces\":true";
    if let Some(at) = place_of(bytes, text) {
        bytes[at..at + text.len()].fill(b' ');
    }
}

/// Changes what the pieces of a header must add up to.
fn rotten_pieces(_: usize, bytes: &mut [u8]) {
    let prelude = bytes.windows(4).position(|it| it == b"\x89PHB");
    // Flags: a continuation with a piece.
    if let Some(prelude) = prelude.and_then(|at| bytes.get_mut(at..at + 56))
        && prelude[10] == 5
    {
        prelude[30] ^= 1;
    }
}

/// As if the server had planned anew before it was asked for one of the shares.
fn another_etag(number: usize, bytes: &mut [u8]) {
    if number == 2
        && bytes.starts_with(b"HTTP/1.1 200")
        && let Some(at) = place_of(bytes, "etag: \"").or_else(|| place_of(bytes, "ETag: \""))
    {
        bytes[at + 7] = b'x';
    }
}

#[test]
fn shares_bring_every_byte_once() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let received = |via: &str, name: &str, connections: &str| -> Result<u64> {
        let store = folder.path().join(name);
        let more = ["--connections", connections, "--as", "rootfs"];
        let report = pull(via, "1", &store, &more)?;
        assert_eq!(report["method"], "bundle", "{report}");
        same(&store.join("rootfs"), &files(1))?;
        report["bytes_received"].as_u64().context("bytes_received")
    };
    let via = http(pierhead.address());
    let whole = received(&via, "whole", "1")?;
    // A head of an answer, a prelude and an end more each.
    let shared = received(&via, "shared", "4")?;
    ensure!(shared < whole + 8 * 1024, "{shared} bytes for {whole}");
    // More than there may be shares, and than there are frames.
    received(&via, "many", "100")?;
    let nothing: Edit = |_, _| {};
    for (name, requests) in [("old", without_share as Edit), ("later", without_pieces)] {
        let (old, _) = editing(pierhead.address(), requests, nothing)?;
        received(&http(old), name, "4")?;
    }
    for (name, answers) in [("changed", another_etag as Edit), ("rotten", rotten_pieces)] {
        let (relay, seen) = editing(pierhead.address(), nothing, answers)?;
        let again = received(&http(relay), name, "4")?;
        // At worst the first share comes with its piece of the header and without, and then all is of another bundle.
        let most = whole * 9 / 4 + 64 * 1024;
        ensure!(again < most, "{name}: {again} bytes for {whole}");
        let seen = seen.load(Ordering::SeqCst);
        ensure!(seen > 4, "{name}: all of the header was not asked for");
    }
    let (relay, seen) = cutting(pierhead.address(), 300 << 10, 4)?;
    received(&http(relay), "cut", "4")?;
    ensure!(seen.load(Ordering::SeqCst) > 4, "nothing was cut");
    Ok(())
}

#[test]
fn files_that_were_altered_or_lost_come_again() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    pull(&via, "1", &store, &[])?;
    let path = |bytes: &[u8]| {
        let hex = pierhead_testkit::images::digest_of(bytes).hex();
        store.join("contents").join(&hex[..2]).join(hex)
    };
    let all = files(1);
    let altered = path(&all[0].1);
    fs::write(&altered, "something else")?;
    fs::remove_file(path(&all[1].1))?;
    pull(&via, "2", &store, &["--as", "rootfs"])?;
    same(&store.join("rootfs"), &files(2))
}

#[test]
fn where_there_are_no_bundles_layers_come() -> Result<()> {
    let (hub, pierhead) = stage(Options::new().config("[bundle]\nenabled = false"))?;
    let folder = place::scratch("worker")?;
    for (name, via) in [("off", http(pierhead.address())), ("plain", hub.url())] {
        let store = folder.path().join(name);
        let report = pull(&via, "1", &store, &["--as", "rootfs"])?;
        assert_eq!(report["method"], "layers", "{report}");
        same(&store.join("rootfs"), &files(1))?;
        ensure!(!store.join("layers").exists(), "layers stay behind");
    }
    Ok(())
}

#[test]
fn what_a_hostile_server_sends_is_no_image() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let bodies: [&[u8]; 3] = [
        b"no bundle at all, and longer than the beginning of one would be, too",
        b"\x89PHB\r\n\x1a\n\x01\x00\x00\x00\xff\xff\xff\xff\0\0\0\0\0\0\0\0................................",
        b"\x89PHB\r\n\x1a\n\x01\x00\x00\x00\x08\0\0\0\0\0\0\0\0\0\0\0................................12345678",
    ];
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            let mut client = client;
            let mut head = [0; 4096];
            let _ = client.read(&mut head);
            let body = bodies[number.min(2)];
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.pierhead.bundle.v1\r\netag: \"x\"\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = client.write_all(&[head.as_bytes(), body].concat());
        }
    });
    let folder = place::scratch("worker")?;
    let store = folder.path().join("store");
    for expected in ["no bundle", "lengths", "digest"] {
        let told = pull(&http(address), "1", &store, &["--connections", "1"]);
        let told = told.expect_err("a hostile bundle").to_string();
        ensure!(told.contains(expected), "{told} is not about {expected}");
    }
    ensure!(
        fs::read_dir(store.join("images"))?.next().is_none(),
        "an image of nothing"
    );
    Ok(())
}

#[test]
fn other_programs_take_what_is_written() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    pull(&via, "1", &store, &["--as", "oci-layout"])?;
    pull(&via, "1", &store, &["--as", "docker-archive"])?;
    let Some(skopeo) = or_skip(tool::find(&["skopeo"])) else {
        return Ok(());
    };
    let layout = format!("oci:{}:1", store.join("oci-layout").display());
    let archive = format!("docker-archive:{}", store.join("image.tar").display());
    for (number, from) in [layout, archive].iter().enumerate() {
        let to = folder.path().join(format!("copy-{number}"));
        let to = format!("dir:{}", to.display());
        pierhead_tests::process::stdout(
            Command::new(&skopeo).args(["copy", "--quiet", from, &to]),
        )?;
        let config = pierhead_tests::process::stdout(
            Command::new(&skopeo).args(["inspect", "--config", "--raw", from]),
        )?;
        let own = &image(&files(1)).blobs[0];
        assert_eq!(
            config.as_bytes(),
            &own.bytes[..],
            "another config than the original"
        );
    }
    Ok(())
}

#[test]
fn whoever_may_not_pull_gets_no_bundle() -> Result<()> {
    let folder = place::scratch("worker")?;
    let users = folder.path().join("htpasswd");
    let hash = bcrypt::hash("right", 4)?;
    fs::write(&users, format!("worker:{hash}\n"))?;
    let config = format!("[auth]\nmode = \"htpasswd\"\nhtpasswd = {users:?}");
    let (_hub, pierhead) = stage(Options::new().config(&config))?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    let told = pull(&via, "1", &store, &[])
        .expect_err("no login")
        .to_string();
    ensure!(told.contains("--user"), "{told}");
    let password = folder.path().join("password");
    let login = |word: &str| -> Result<Value> {
        fs::write(&password, word)?;
        let file = password.to_str().context("UTF-8")?;
        pull(
            &via,
            "1",
            &store,
            &["--user", "worker", "--password-file", file],
        )
    };
    let told = login("wrong").expect_err("a wrong password").to_string();
    ensure!(told.contains("the login is wrong"), "{told}");
    assert_eq!(login("right")?["method"], "bundle");
    Ok(())
}

#[test]
fn the_order_of_a_start_is_recorded_and_taken() -> Result<()> {
    if or_skip(tool::root()).is_none() {
        return Ok(());
    }
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    pull(&via, "1", &store, &["--as", "rootfs"])?;
    let root = store.join("rootfs");
    let order = folder.path().join("order");
    let run = Command::new(place::pierhead()?)
        .args(["trace", "--image", "app:1", "--via", &via, "--output"])
        .arg(&order)
        .arg("--root")
        .arg(&root)
        .args(["--", "cat"])
        .args([root.join("usr/share/doc-7"), root.join("usr/bin/app")])
        .stdout(std::process::Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    ensure!(run.status.success(), "{said}");
    assert_eq!(
        fs::read_to_string(&order)?,
        "usr/share/doc-7\nusr/bin/app\n",
        "{said}"
    );
    ensure!(said.contains("sent the order of 2 files"), "{said}");
    Ok(())
}

#[test]
fn images_are_shown_and_compared() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = place::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    for version in ["1", "2"] {
        pull(&via, version, &store, &[])?;
    }
    let from = store.to_str().context("UTF-8")?;
    let ask = |words: &[&str]| -> Result<Value> {
        let mut command = Command::new(place::pierhead()?);
        let said = pierhead_tests::process::stdout(command.args(words).arg("--json"))?;
        Ok(serde_json::from_str(&said)?)
    };
    let seen = ask(&["inspect", "app:2", "--via", &via, "--from", from])?;
    assert_eq!(seen["layers"][0]["files"], 42, "{seen}");
    assert_eq!(
        seen["shared"][0]["image"], "docker.io/library/app:1",
        "{seen}"
    );
    assert_eq!(seen["shared"][0]["contents"], 41, "{seen}");
    ensure!(!seen["hot"].as_array().context("hot")?.is_empty(), "{seen}");
    for place in [&["--via", &via][..], &["--from", from]] {
        let diff = ask(&[&["diff", "app:1", "app:2"][..], place].concat())?;
        assert_eq!(diff["files"]["count"], 1, "{diff}");
        assert_eq!(diff["files"]["bytes"], 20_000, "{diff}");
        assert_eq!(diff["layers"]["count"], 1, "{diff}");
    }
    Ok(())
}
