//! End-to-end tests of bundles (downloads with only the missing files of an image): `pierhead
//! pull`, `export`, `trace`, `diff` and `inspect` against a running daemon.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use pierhead_testkit::http::server::{TestServer, response};
use pierhead_testkit::{
    images::{Image, random_bytes},
    registry::FakeRegistry,
};
use pierhead_tests::{
    layout::architecture,
    paths,
    pierhead::{Options, Pierhead},
    tool::{self, or_skip},
    wait,
};
use serde_json::{Value, json};

use crate::requests::start_in_front;

const MIB: usize = 1 << 20;

/// Names and contents of the files of one layer.
pub(crate) type Files = Vec<(String, Vec<u8>)>;

/// Generates text that compresses to half its size, as programs do.
pub(crate) fn content(seed: u64, len: usize) -> Vec<u8> {
    let digits = b"0123456789abcdef";
    let random = random_bytes(seed, len);
    random
        .iter()
        .map(|byte| digits[usize::from(byte & 15)])
        .collect()
}

/// The files of an image version: 40 small files, a large one, and a program. The program differs
/// in each version.
pub(crate) fn files(version: u64) -> Files {
    files_with(version, 5 * MIB)
}

/// As [`files`], with a large file of `large` bytes.
fn files_with(version: u64, large: usize) -> Files {
    let mut files: Files = (0..40)
        .map(|nth| (format!("usr/share/doc-{nth}"), content(nth, 3000)))
        .collect();
    files.push(("usr/lib/large.so".to_owned(), content(100, large)));
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
            .expect("a write to memory");
    }
    let tar = tar.into_inner().expect("a write to memory");
    Image::of_tars(architecture(), &[tar])
}

/// Starts a registry with both image versions, and a pierhead in front of the registry.
pub(crate) fn stage(
    options: Options,
) -> Result<(pierhead_testkit::registry::Background, Pierhead)> {
    stage_files(options, files)
}

fn stage_files(
    options: Options,
    files: impl Fn(u64) -> Files,
) -> Result<(pierhead_testkit::registry::Background, Pierhead)> {
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    for version in [1, 2] {
        hub.push("library/app", &version.to_string(), &image(&files(version)));
    }
    Ok((hub, pierhead))
}

/// Runs `pierhead pull --json`. Returns its JSON output, or its error output as the error.
pub(crate) fn pull(via: &str, version: &str, store: &Path, more: &[&str]) -> Result<Value> {
    let mut command = Command::new(paths::pierhead()?);
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

pub(crate) fn assert_same_files(root: &Path, expected: &Files) -> Result<()> {
    for (path, bytes) in expected {
        let found = fs::read(root.join(path)).with_context(|| path.clone())?;
        ensure!(found == *bytes, "{path} has wrong bytes");
    }
    Ok(())
}

#[test]
fn an_update_transfers_only_changed_files() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
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
    assert_same_files(&root, &files(2))?;

    // A complete image is pulled by digest without any request.
    let digest = update["digest"].as_str().context("a digest")?;
    let mut again = Command::new(paths::pierhead()?);
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

    // A second store uses files of the first store, without writing to the first store.
    let other = folder.path().join("other");
    let from = store.to_str().context("UTF-8")?;
    let built = pull(&via, "1", &other, &["--base-store", from])?;
    ensure!(received(&built)? < received(&fresh)? / 2, "{built}");
    Ok(())
}

/// Starts a relay that closes the first `cuts` connections after this number of response bytes.
fn start_cutting_relay(
    target: SocketAddr,
    after: usize,
    cuts: usize,
) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    // The thread ends with the test process.
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
fn an_interrupted_pull_resumes() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
    let whole = pull(
        &http(pierhead.address()),
        "1",
        &folder.path().join("whole"),
        &[],
    )?;
    let whole = whole["bytes_received"].as_u64().context("bytes_received")?;
    for connections in ["1", "3"] {
        let store = folder.path().join(connections);
        let (relay, seen) = start_cutting_relay(pierhead.address(), MIB, 2)?;
        let report = pull(
            &http(relay),
            "1",
            &store,
            &["--connections", connections, "--as", "rootfs"],
        )?;
        ensure!(seen.load(Ordering::SeqCst) > 2, "no connection was cut");
        let received = report["bytes_received"]
            .as_u64()
            .context("bytes_received")?;
        ensure!(received < whole * 3, "{received} bytes for {whole}");
        assert_same_files(&store.join("rootfs"), &files(1))?;
    }
    Ok(())
}

/// A function that edits the bytes of a request or response. The number is that of the connection.
type Edit = fn(usize, &mut [u8]);

/// Starts a relay that edits each chunk of requests and responses.
/// Returns its address, and the counter of connections.
fn start_editing_relay(
    target: SocketAddr,
    requests: Edit,
    responses: Edit,
) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    // The thread ends with the test process.
    thread::spawn(move || {
        for (number, client) in listener.incoming().flatten().enumerate() {
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || -> std::io::Result<()> {
                let server = TcpStream::connect(target)?;
                let (from, to) = (client.try_clone()?, server.try_clone()?);
                thread::spawn(move || pass(from, to, number, requests));
                pass(server, client, number, responses)
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

fn find_text(bytes: &[u8], text: &str) -> Option<usize> {
    bytes
        .windows(text.len())
        .position(|at| at == text.as_bytes())
}

/// Simulates a server that cannot split a bundle into shares for parallel connections: blanks the
/// request field for shares.
fn without_share(_: usize, bytes: &mut [u8]) {
    if let Some(at) = find_text(bytes, ",\"share\":[") {
        let len = bytes[at..]
            .iter()
            .position(|byte| *byte == b']')
            .unwrap_or(0);
        bytes[at..=at + len].fill(b' ');
    }
}

/// Simulates a server that splits a bundle into shares, but sends the bundle's header whole instead
/// of in pieces: blanks the request field for pieces.
fn without_pieces(_: usize, bytes: &mut [u8]) {
    let text = ",\"pieces\":true";
    if let Some(at) = find_text(bytes, text) {
        bytes[at..at + text.len()].fill(b' ');
    }
}

/// Changes the checksum of the pieces of a bundle's header.
fn corrupt_pieces(_: usize, bytes: &mut [u8]) {
    let prelude = bytes.windows(4).position(|it| it == b"\x89PHB");
    // Flags value 5: the response continues a bundle and has a piece of its header.
    if let Some(prelude) = prelude.and_then(|at| bytes.get_mut(at..at + 56))
        && prelude[10] == 5
    {
        prelude[30] ^= 1;
    }
}

/// Changes the ETag in the response with one share, as if the server had made a new plan after the
/// other shares.
fn another_etag(number: usize, bytes: &mut [u8]) {
    if number == 2
        && bytes.starts_with(b"HTTP/1.1 200")
        && let Some(at) = find_text(bytes, "etag: \"").or_else(|| find_text(bytes, "ETag: \""))
    {
        bytes[at + 7] = b'x';
    }
}

#[test]
fn shares_transfer_every_byte_once() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
    let received = |via: &str, name: &str, connections: &str| -> Result<u64> {
        let store = folder.path().join(name);
        let more = ["--connections", connections, "--as", "rootfs"];
        let report = pull(via, "1", &store, &more)?;
        assert_eq!(report["method"], "bundle", "{report}");
        assert_same_files(&store.join("rootfs"), &files(1))?;
        report["bytes_received"].as_u64().context("bytes_received")
    };
    let via = http(pierhead.address());
    let whole = received(&via, "whole", "1")?;
    // Each share adds a response head, a prelude and an end.
    let shared = received(&via, "shared", "4")?;
    ensure!(shared < whole + 8 * 1024, "{shared} bytes for {whole}");
    // The request asks for more shares than the maximum, and for more shares than the bundle has
    // frames.
    received(&via, "many", "100")?;
    let nothing: Edit = |_, _| {};
    for (name, requests) in [("old", without_share as Edit), ("newer", without_pieces)] {
        let (old, _) = start_editing_relay(pierhead.address(), requests, nothing)?;
        received(&http(old), name, "4")?;
    }
    for (name, responses) in [
        ("changed", another_etag as Edit),
        ("corrupt", corrupt_pieces),
    ] {
        let (relay, seen) = start_editing_relay(pierhead.address(), nothing, responses)?;
        let again = received(&http(relay), name, "4")?;
        // In the worst case, the worker receives the first share with and without its piece of the
        // header, and then the whole other bundle.
        let most = whole * 9 / 4 + 64 * 1024;
        ensure!(again < most, "{name}: {again} bytes for {whole}");
        let seen = seen.load(Ordering::SeqCst);
        ensure!(seen > 4, "{name}: the complete header was not requested");
    }
    let (relay, seen) = start_cutting_relay(pierhead.address(), 300 << 10, 4)?;
    received(&http(relay), "cut", "4")?;
    ensure!(seen.load(Ordering::SeqCst) > 4, "no connection was cut");
    Ok(())
}

#[test]
fn altered_and_lost_files_are_fetched_again() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
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
    assert_same_files(&store.join("rootfs"), &files(2))
}

#[test]
fn deleted_folders_of_a_store_are_created_again() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    pull(&via, "1", &store, &[])?;
    for entry in fs::read_dir(store.join("contents"))? {
        let path = entry?.path();
        // Keeps the folder that pierhead creates last, because a store without this folder looks
        // new.
        if !path.ends_with("ff") {
            fs::remove_dir_all(path)?;
        }
    }
    pull(&via, "1", &store, &["--as", "rootfs"])?;
    assert_same_files(&store.join("rootfs"), &files(1))?;
    pull(&via, "2", &store, &[]).map(drop)
}

#[test]
fn an_image_that_is_missing_is_not_found() -> Result<()> {
    let (hub, pierhead) = stage(Options::new())?;
    let (pierhead, plain) = (http(pierhead.address()), hub.url());
    let folder = paths::scratch("worker")?;
    let order = folder.path().join("order");
    fs::write(&order, "usr/bin/app\n")?;
    let order = order.to_str().context("UTF-8")?;
    let store = folder.path().join("store");
    let store = store.to_str().context("UTF-8")?;
    let started = folder.path().join("started");
    let started = started.to_str().context("UTF-8")?;
    let commands: [&[&str]; 6] = [
        &["pull", "app:9", "--into", store],
        &["pull", "app:9", "--layers", "--into", store],
        &["inspect", "app:9"],
        &["diff", "app:1", "app:9"],
        &["trace", "--image", "app:9", "--send", order],
        // `pierhead pull` does not run this command.
        &[
            "trace", "--image", "app:9", "--root", "/", "--", "touch", started,
        ],
    ];
    for via in [&pierhead, &plain] {
        for words in commands {
            // A registry without pierhead has the old image, but no bundle, so a comparison is
            // impossible.
            if words[0] == "diff" && *via == plain {
                continue;
            }
            let run = Command::new(paths::pierhead()?)
                .args([words[0], "--via", via])
                .args(&words[1..])
                .output()?;
            let said = String::from_utf8_lossy(&run.stderr).into_owned();
            let expected = format!("docker.io/library/app:9: not found on {via}");
            ensure!(said.contains(&expected), "{words:?}: {said}");
            ensure!(!said.contains("bundle"), "{words:?}: {said}");
            assert_eq!(run.status.code(), Some(66), "{words:?}: {said}");
        }
    }
    ensure!(!Path::new(started).exists(), "the command ran");
    // A server without bundles causes another error.
    let run = Command::new(paths::pierhead()?)
        .args(["inspect", "app:1", "--via", &plain])
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    ensure!(said.contains("offers no bundles"), "{said}");
    assert_eq!(run.status.code(), Some(1), "{said}");
    Ok(())
}

#[test]
fn layers_are_pulled_when_bundles_are_unavailable() -> Result<()> {
    let (hub, pierhead) = stage(Options::new().config("[bundle]\nsize = \"off\""))?;
    let folder = paths::scratch("worker")?;
    for (name, via) in [("off", http(pierhead.address())), ("plain", hub.url())] {
        let store = folder.path().join(name);
        let report = pull(&via, "1", &store, &["--as", "rootfs"])?;
        assert_eq!(report["method"], "layers", "{report}");
        assert_same_files(&store.join("rootfs"), &files(1))?;
        ensure!(!store.join("layers").exists(), "layers remain in the store");
    }
    Ok(())
}

#[test]
fn bundles_of_a_hostile_server_are_refused() -> Result<()> {
    let bodies: [&[u8]; 3] = [
        b"no bundle at all, and longer than the beginning of one would be, too",
        b"\x89PHB\r\n\x1a\n\x01\x00\x00\x00\xff\xff\xff\xff\0\0\0\0\0\0\0\0................................",
        b"\x89PHB\r\n\x1a\n\x01\x00\x00\x00\x08\0\0\0\0\0\0\0\0\0\0\0................................12345678",
    ];
    let number = AtomicUsize::new(0);
    let server = TestServer::start(move |_| {
        let body = bodies[number.fetch_add(1, Ordering::SeqCst).min(2)];
        let media_type = "application/vnd.pierhead.bundle.v1";
        response(
            "200 OK",
            &[("content-type", media_type), ("etag", "\"x\"")],
            body,
        )
    });
    let folder = paths::scratch("worker")?;
    let store = folder.path().join("store");
    for expected in ["no bundle", "lengths", "digest"] {
        let told = pull(
            &http(server.address()),
            "1",
            &store,
            &["--connections", "1"],
        );
        let told = told.expect_err("a hostile bundle").to_string();
        ensure!(
            told.contains(expected),
            "{told} does not contain {expected}"
        );
    }
    ensure!(
        fs::read_dir(store.join("images"))?.next().is_none(),
        "the store has an image"
    );
    Ok(())
}

#[test]
fn exported_layouts_are_accepted_by_other_programs() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
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
            "the config differs from the original"
        );
    }
    Ok(())
}

#[test]
fn a_client_without_pull_access_gets_no_bundle() -> Result<()> {
    let folder = paths::scratch("worker")?;
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
    ensure!(told.contains("the credentials are wrong"), "{told}");
    assert_eq!(login("right")?["method"], "bundle");
    Ok(())
}

#[test]
fn the_start_order_is_recorded_and_sent_to_the_server() -> Result<()> {
    if or_skip(tool::root()).is_none() {
        return Ok(());
    }
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    pull(&via, "1", &store, &["--as", "rootfs"])?;
    let root = store.join("rootfs");
    let order = folder.path().join("order");
    let run = Command::new(paths::pierhead()?)
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
    ensure!(said.contains("sent an order of 2 files"), "{said}");
    // The order of a command that fails is not the order of a start.
    let failed = Command::new(paths::pierhead()?)
        .args(["trace", "--image", "app:1", "--via", &via, "--root"])
        .arg(&root)
        .args(["--", "cat"])
        .args([root.join("usr/bin/app"), root.join("missing")])
        .output()?;
    let said = String::from_utf8_lossy(&failed.stderr).into_owned();
    ensure!(failed.status.code() == Some(1), "{said}");
    ensure!(said.contains("nothing was sent"), "{said}");
    Ok(())
}

/// A shell of this machine with its libraries, as files of an image.
fn shell() -> Result<Files> {
    let libraries = pierhead_tests::process::stdout(Command::new("ldd").arg("/bin/sh"))?;
    let libraries = libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'));
    let paths = std::iter::once("/bin/sh").chain(libraries);
    paths
        .map(|path| Ok((path.trim_start_matches('/').to_owned(), fs::read(path)?)))
        .collect()
}

/// Starts a relay that records the requests.
fn start_recording_relay(target: SocketAddr) -> Result<(SocketAddr, Arc<Mutex<Vec<u8>>>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&heard);
    // The thread ends with the test process.
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let keep = Arc::clone(&keep);
            thread::spawn(move || -> std::io::Result<()> {
                let mut server = TcpStream::connect(target)?;
                let (mut responses, mut to) = (server.try_clone()?, client.try_clone()?);
                thread::spawn(move || std::io::copy(&mut responses, &mut to));
                let mut client = client;
                let mut piece = vec![0; 64 << 10];
                loop {
                    let read = client.read(&mut piece)?;
                    if read == 0 {
                        return server.shutdown(Shutdown::Write);
                    }
                    let mut recorded = keep.lock();
                    recorded.extend_from_slice(&piece[..read]);
                    drop(recorded);
                    server.write_all(&piece[..read])?;
                }
            });
        }
    });
    Ok((address, heard))
}

/// A runc container with its own mount namespace. The program in the container waits for a line in
/// `volume/go`, opens files and exits.
struct Container {
    runc: Child,
    pid: String,
    volume: PathBuf,
}

impl Container {
    /// Starts a container whose root is a folder of this machine. A volume and a file of the same
    /// file system are mounted in it.
    fn start(folder: &Path, root: &Path) -> Result<Self> {
        const SCRIPT: &str = "\
read line < /volume/go
read line < /usr/share/doc-7
read line < /volume/private
read line < /etc/resolv.conf
read line < /proc/version
echo made > /made
read line < /usr/share/doc-3";
        let volume = folder.join("volume");
        fs::create_dir(&volume)?;
        fs::write(volume.join("private"), "of this machine\n")?;
        let resolver = folder.join("resolv.conf");
        fs::write(&resolver, "nameserver 192.0.2.1\n")?;
        rustix::fs::mknodat(
            rustix::fs::CWD,
            volume.join("go"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )?;
        let bind = |destination: &str, source: &Path| json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind"]});
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"],
                "args": ["/bin/sh", "-c", SCRIPT],
            },
            "root": {"path": root},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
                bind("/volume", &volume),
                bind("/etc/resolv.conf", &resolver),
            ],
            "linux": {"namespaces": [{"type": "mount"}, {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}]},
        });
        fs::write(folder.join("config.json"), serde_json::to_vec(&config)?)?;
        let file = folder.join("pid");
        // runc has one state folder per machine, so that the ID must be unique.
        let id = folder.file_name().context("a folder without a name")?;
        let runc = tool::find(&["runc"])?;
        let mut runc = Command::new(runc)
            .arg("--root")
            .arg(folder.join("state"))
            .args(["run", "--bundle"])
            .arg(folder)
            .arg("--pid-file")
            .arg(&file)
            .arg(id)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let pid = wait::try_until("the container", || {
            if let Some(status) = runc.try_wait()? {
                let mut said = String::new();
                if let Some(mut stderr) = runc.stderr.take() {
                    stderr.read_to_string(&mut said)?;
                }
                bail!("{status}: {said}");
            }
            let pid = fs::read_to_string(&file).unwrap_or_default();
            Ok((!pid.is_empty()).then_some(pid))
        })?;
        Ok(Self { runc, pid, volume })
    }

    /// Makes the container open its files.
    fn go(&self) -> Result<()> {
        Ok(fs::write(self.volume.join("go"), "go\n")?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let pid = self
            .pid
            .parse()
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.runc.try_wait()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.runc.wait();
    }
}

#[test]
fn a_trace_has_the_files_of_the_container_and_none_of_the_host() -> Result<()> {
    if or_skip(tool::root()).is_none() || or_skip(tool::find(&["runc"])).is_none() {
        return Ok(());
    }
    let (hub, pierhead) = stage(Options::new())?;
    let mut all = files(1);
    all.extend(shell()?);
    all.push(("etc/resolv.conf".to_owned(), b"of the image\n".to_vec()));
    hub.push("library/app", "shell", &image(&all));
    let folder = paths::scratch("worker")?;
    let store = folder.path().join("store");
    pull(
        &http(pierhead.address()),
        "shell",
        &store,
        &["--as", "rootfs"],
    )?;
    let root = store.join("rootfs");
    let container = Container::start(folder.path(), &root)?;
    let (relay, heard) = start_recording_relay(pierhead.address())?;
    let order = folder.path().join("order");
    let mut trace = Command::new(paths::pierhead()?)
        .args(["trace", "--image", "app:shell", "--via", &http(relay)])
        // The trace ends when the container ends, or after a timeout.
        .args(["--pid", &container.pid, "--seconds", "60", "--output"])
        .arg(&order)
        .stderr(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(trace.stderr.take().context("piped")?);
    let mut line = String::new();
    said.read_line(&mut line)?;
    ensure!(line.starts_with("recording "), "{line}");
    container.go()?;
    let mut rest = String::new();
    said.read_to_string(&mut rest)?;
    ensure!(trace.wait()?.success(), "{line}{rest}");
    // The container creates the file `made`, which is not part of the image.
    let recorded = "usr/share/doc-7\nmade\nusr/share/doc-3\n";
    assert_eq!(fs::read_to_string(&order)?, recorded, "{rest}");
    let told = "sent an order of 2 files of docker.io/library/app:shell, out of 3 opened files; the server matched 2";
    ensure!(rest.contains(told), "{rest}");
    let heard = heard.lock().clone();
    let heard = String::from_utf8_lossy(&heard);
    let sent = r#""files":["usr/share/doc-7","usr/share/doc-3"]"#;
    ensure!(heard.contains(sent), "{heard}");
    for name in ["made", "private", "resolv.conf", "version"] {
        ensure!(!heard.contains(name), "{name}: {heard}");
    }
    // Processes of the host have no image.
    let own = std::process::id().to_string();
    let run = Command::new(paths::pierhead()?)
        .args([
            "trace",
            "--image",
            "app:shell",
            "--output",
            "-",
            "--pid",
            &own,
        ])
        .args(["--seconds", "1"])
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(2), "{said}");
    ensure!(said.contains("root of this machine"), "{said}");
    Ok(())
}

#[test]
fn the_start_order_of_another_image_is_not_sent() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("worker")?;
    let order = folder.path().join("order");
    fs::write(&order, "home/someone/plans\nusr/bin\n")?;
    let (relay, heard) = start_recording_relay(pierhead.address())?;
    let run = Command::new(paths::pierhead()?)
        .args(["trace", "--image", "app:1", "--via", &http(relay), "--send"])
        .arg(&order)
        .output()?;
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1), "{said}");
    ensure!(said.contains("Nothing was sent"), "{said}");
    let heard = heard.lock().clone();
    let heard = String::from_utf8_lossy(&heard);
    ensure!(!heard.contains("plans"), "{heard}");
    Ok(())
}

#[test]
fn inspect_shows_and_compares_images() -> Result<()> {
    // The images are small (a few hundred KB), because the test waits for the low-priority thread
    // that compresses packs (files with the contents of images).
    let (_hub, pierhead) = stage_files(Options::new(), |version| files_with(version, MIB / 4))?;
    let folder = paths::scratch("worker")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    for version in ["1", "2"] {
        pull(&via, version, &store, &[])?;
    }
    let from = store.to_str().context("UTF-8")?;
    let ask = |words: &[&str]| -> Result<Value> {
        let mut command = Command::new(paths::pierhead()?);
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
    // The source is the config: it has no command, and no client has recorded a start.
    assert_eq!(seen["start_order"]["source"]["kind"], "config", "{seen}");
    assert_eq!(seen["hot"], json!([]), "{seen}");
    let order = folder.path().join("order");
    fs::write(&order, "usr/share/doc-7\nusr/bin/app\n")?;
    let order = order.to_str().context("UTF-8")?;
    let send = ["trace", "--image", "app:2", "--via", &via, "--send", order];
    let again = ["pull", "app:1", "--via", &via, "--into", from];
    for words in [&send[..], &again] {
        let mut command = Command::new(paths::pierhead()?);
        let said = pierhead_tests::process::run(command.arg("--quiet").args(words))?;
        assert_eq!(said, "", "{words:?}");
    }
    // The response has the files of the start order, and no other files of the same frame.
    let seen = ask(&["inspect", "app:2", "--via", &via])?;
    assert_eq!(seen["start_order"]["source"]["kind"], "trace", "{seen}");
    assert_eq!(
        seen["hot"],
        json!(["usr/share/doc-7", "usr/bin/app"]),
        "{seen}"
    );
    wait::try_until("bundles in the start order", || {
        let seen = ask(&["inspect", "app:2", "--via", &via])?;
        Ok((seen["start_order"]["applied"] == true).then_some(()))
    })?;
    for place in [&["--via", &via][..], &["--from", from]] {
        let diff = ask(&[&["diff", "app:1", "app:2"][..], place].concat())?;
        assert_eq!(diff["files"]["count"], 1, "{diff}");
        assert_eq!(diff["files"]["bytes"], 20_000, "{diff}");
        assert_eq!(diff["layers"]["count"], 1, "{diff}");
    }
    Ok(())
}
