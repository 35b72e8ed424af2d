//! Tests the peak memory of bundle server and worker for images with very many files. Each measured
//! step runs in a separate process.
#![allow(clippy::unwrap_used, reason = "all of it is test")]
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pierhead_bundle::api::BundleQuery;
use pierhead_bundle::format::{Decoder, Event};
use pierhead_bundle_server::{BundleServer, Config, Image, Piece, State};
use pierhead_oci::{Algorithm, Digest, Hasher};
use pierhead_testkit::source::BlobFolder;
use pierhead_testkit::wait::until;
use pierhead_worker::store::{ApplyOutcome, NewFetch, Store};
use serde_json::json;

/// Number of entries of a test image. With 100 000 entries, the server takes 34 to 67 MiB and the
/// worker 12 to 33 MiB, depending on the shape; an empty process has 7 MiB.
const ENTRIES: u64 = 30_000;

/// Maximum peak memory of the server, and of the worker, in bytes. Each of these faults exceeds the
/// limits: a copy of the attributes in the worker's memory, a TOC that is kept while the next TOC
/// is made, and zstd's own search structures for the header.
const SERVER: u64 = 48 << 20;
const WORKER: u64 = 24 << 20;

/// Environment variable with the step, the shape and the folder of a child process of this test.
const STEP_VARIABLE: &str = "MEMORY_STEP";

/// The shapes of test images: the kind of entries of which the image has very many.
const SHAPES: [&str; 2] = ["xattrs", "distinct"];

fn digest_of(path: &Path) -> Digest {
    let mut hash = Hasher::new(Algorithm::Sha256);
    let mut file = BufReader::new(File::open(path).unwrap());
    let mut piece = vec![0; 64 << 10];
    loop {
        match file.read(&mut piece).unwrap() {
            0 => return hash.finish(),
            read => hash.update(&piece[..read]),
        }
    }
}

/// Returns the tar of a layer of this shape.
fn tar(shape: &str, path: &Path) {
    let mut tar = tar::Builder::new(BufWriter::new(File::create(path).unwrap()));
    for nth in 0..ENTRIES {
        let path = format!("folder-{}/a-name-of-some-length-{nth}", nth % 500);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600 + u32::try_from(nth % 64).unwrap());
        header.set_mtime(nth);
        header.set_size(0);
        match shape {
            "xattrs" => {
                let value = format!("the value {nth}");
                tar.append_pax_extensions([("SCHILY.xattr.user.some", value.as_bytes())])
                    .unwrap();
                tar.append_data(&mut header, path, io::empty()).unwrap();
            }
            _ => {
                let bytes = format!("the content {nth}");
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, bytes.as_bytes())
                    .unwrap();
            }
        }
    }
    tar.into_inner().unwrap().flush().unwrap();
}

/// Makes an image of one layer of this shape. Returns the digest of its manifest.
fn image(shape: &str, blobs: &BlobFolder) -> Digest {
    let path = blobs.path().join("tar");
    tar(shape, &path);
    let layer = digest_of(&path);
    let len = fs::metadata(&path).unwrap().len();
    fs::rename(&path, blobs.path().join(layer.hex())).unwrap();
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer.to_string()]},
    });
    let config = config.to_string();
    let (config, size) = (blobs.put(config.as_bytes()), config.len());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config.to_string(), "size": size,
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": layer.to_string(), "size": len,
        }],
    });
    blobs.put(manifest.to_string().as_bytes())
}

/// Runs the step of the server: indexes an image of this shape, and writes the bundle of the image
/// to a file.
fn serve(shape: &str, folder: &Path) {
    let blobs = BlobFolder::new(folder.join("blobs"));
    fs::create_dir(blobs.path()).unwrap();
    let manifest = image(shape, &blobs);
    let mut config = Config::new(folder.join("data"), 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    let bundle_server = BundleServer::open(config, Arc::new(blobs)).unwrap();
    bundle_server.offer(Image {
        manifest,
        repository: "registry/app".into(),
    });
    until("an indexed image", || {
        !matches!(bundle_server.awaited(&manifest), State::Working(_))
    });
    assert_eq!(bundle_server.state(&manifest), State::Ready);
    let bundle = bundle_server.bundle(&manifest, &[], true).unwrap();
    let mut stream = bundle.stream(None).unwrap();
    let mut out = BufWriter::new(File::create(folder.join("bundle")).unwrap());
    while let Some(piece) = stream.next_piece().unwrap() {
        match piece {
            Piece::Bytes(bytes) => out.write_all(&bytes).unwrap(),
            Piece::File { file, offset, len } => {
                let mut bytes = vec![0; usize::try_from(len).unwrap()];
                file.file().read_exact_at(&mut bytes, offset).unwrap();
                out.write_all(&bytes).unwrap();
            }
        }
    }
    out.flush().unwrap();
    bundle_server.close();
}

/// Runs the step of the worker: applies the bundle in the file that the server wrote to a store.
fn work(folder: &Path) {
    let store = Store::open(&folder.join("store"), &[]).unwrap();
    let mut file = File::open(folder.join("bundle")).unwrap();
    let (mut decoder, mut apply) = (Decoder::new(), None);
    let mut piece = vec![0; 64 << 10];
    loop {
        let read = file.read(&mut piece).unwrap();
        let mut rest = &piece[..read];
        while let Some(event) = decoder.feed(&mut rest).unwrap() {
            match event {
                Event::Header {
                    prelude,
                    body,
                    header,
                } => {
                    apply = Some(
                        store
                            .begin(NewFetch {
                                name: "app",
                                query: &BundleQuery::default(),
                                etag: &prelude.etag(),
                                prelude: &prelude,
                                body: &body,
                                header: *header,
                                is_toc_verified: false,
                            })
                            .unwrap(),
                    );
                }
                Event::Record {
                    frame,
                    coding,
                    payload,
                } => {
                    let apply = apply.as_ref().unwrap();
                    apply.record(frame, coding, payload).unwrap();
                }
                _ => {}
            }
        }
        if read == 0 {
            break;
        }
    }
    match apply.unwrap().finish().unwrap() {
        ApplyOutcome::Complete(whole) => drop(whole.recorded().unwrap()),
        outcome @ ApplyOutcome::Missing(_) => panic!("{outcome:?}"),
    }
}

/// Returns the peak memory of this process in bytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() << 10
}

/// The entry point of a child process of the memory test: runs the step in the environment variable
/// `MEMORY_STEP`. Does nothing without this variable.
#[test]
fn a_step() {
    let Ok(variable) = std::env::var(STEP_VARIABLE) else {
        return;
    };
    let [step, shape, folder] = variable.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("{variable}");
    };
    match step {
        "serve" => serve(shape, Path::new(folder)),
        _ => work(Path::new(folder)),
    }
    fs::write(Path::new(folder).join(step), peak().to_string()).unwrap();
}

/// Runs a step in a child process. Returns its peak memory in bytes.
fn step(step: &str, shape: &str, folder: &Path) -> u64 {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_step", "--nocapture"])
        .env(
            STEP_VARIABLE,
            format!("{step} {shape} {}", folder.display()),
        )
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{step} {shape}: {said}");
    let peak = fs::read_to_string(folder.join(step)).unwrap();
    peak.parse().unwrap()
}

#[test]
fn images_with_very_many_entries_take_bounded_memory() {
    let mut over = Vec::new();
    for shape in SHAPES {
        let folder = tempfile::tempdir().unwrap();
        for (at, most) in [("serve", SERVER), ("work", WORKER)] {
            let peak = step(at, shape, folder.path());
            if peak > most {
                over.push(format!("{at} {shape}: {peak} bytes of {most}"));
            }
        }
    }
    assert!(over.is_empty(), "{over:?}");
}
