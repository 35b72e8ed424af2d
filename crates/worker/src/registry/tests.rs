//! Tests of a worker's registry client with a test server: manifests, indexes, blobs, ranges and
//! redirects.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pierhead_oci::Algorithm;

use super::*;
use crate::http::test_server::Connect as _;
use pierhead_testkit::http::server::{ReceivedRequest, TestServer, refusal, response};

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const BLOB: &[u8] = b"the bytes of one layer";

fn image(target: &str) -> Reference {
    format!("registry.example/team/app{target}")
        .parse()
        .expect("a reference")
}

fn platform(text: &str) -> Platform {
    text.parse().expect("a platform")
}

fn digest(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

fn manifest(config: &str) -> Vec<u8> {
    let config = digest(config.as_bytes());
    format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST_TYPE}","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{config}","size":6}},"layers":[]}}"#
    )
    .into_bytes()
}

fn index(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries: Vec<_> = entries
        .iter()
        .map(|(platform, manifest)| {
            let (os, architecture) = platform.split_once('/').expect("OS and architecture");
            format!(
                r#"{{"mediaType":"{MANIFEST_TYPE}","digest":"{}","size":{},"platform":{{"os":"{os}","architecture":"{architecture}"}}}}"#,
                digest(manifest),
                manifest.len()
            )
        })
        .collect();
    let entries = entries.join(",");
    format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX_TYPE}","manifests":[{entries}]}}"#)
        .into_bytes()
}

fn ok(media_type: &str, body: &[u8]) -> Vec<u8> {
    response("200 OK", &[("content-type", media_type)], body)
}

#[test]
fn the_manifest_of_the_platform_is_chosen_from_an_index() {
    let (amd64, arm64) = (manifest("amd64"), manifest("arm64"));
    let list = index(&[("linux/amd64", &amd64), ("linux/arm64", &arm64)]);
    let (first, second) = (amd64.clone(), arm64.clone());
    let server = TestServer::start(move |request| match request.target().rsplit('/').next() {
        Some("1") => ok(INDEX_TYPE, &list),
        Some(name) if name == digest(&first).to_string() => ok(MANIFEST_TYPE, &first),
        Some(name) if name == digest(&second).to_string() => ok(MANIFEST_TYPE, &second),
        _ => refusal("404 Not Found", "MANIFEST_UNKNOWN"),
    });
    let session = Session::new(&server.server());
    for (name, wanted) in [("linux/amd64", &amd64), ("linux/arm64", &arm64)] {
        let found = resolve(&session, &image(":1"), &platform(name)).expect("an image");
        assert_eq!(found.digest, digest(wanted));
        assert_eq!(found.manifest.bytes, wanted[..]);
    }
    let error = resolve(&session, &image(":1"), &platform("linux/s390x"))
        .err()
        .expect("no such platform")
        .to_string();
    assert!(
        error.contains("--platform: linux/amd64 linux/arm64"),
        "{error}"
    );
    let error = resolve(&session, &image(":2"), &platform("linux/amd64")).err();
    assert!(matches!(error, Some(Error::NotFound { .. })));
    let accept = server.requests()[0].header("accept").map(str::to_owned);
    let accept = accept.expect("a list of media types");
    assert!(
        accept.contains(MANIFEST_TYPE) && accept.contains(INDEX_TYPE),
        "{accept}"
    );
}

#[test]
fn a_manifest_that_does_not_match_its_digest_is_refused() {
    let (wanted, sent) = (manifest("a"), manifest("b"));
    let server = TestServer::start(move |_| ok(MANIFEST_TYPE, &sent));
    let session = Session::new(&server.server());
    let named = image(&format!("@{}", digest(&wanted)));
    let error = resolve(&session, &named, &platform("linux/amd64")).err();
    assert!(matches!(error, Some(Error::Digest { .. })));
}

#[test]
fn a_platform_of_a_hostile_index_is_shown_without_control_characters() {
    let long = Platform {
        os: "linux".to_owned(),
        architecture: "a".repeat(200),
        variant: None,
    };
    let shown = shown_platform(&long);
    assert_eq!(shown.chars().count(), MAX_PLATFORM_CHARS + 1);
    let hostile = Platform {
        os: "\u{1b}[2J".to_owned(),
        architecture: "amd64".to_owned(),
        variant: None,
    };
    assert!(!shown_platform(&hostile).contains('\u{1b}'));
}

/// Fetches [`BLOB`] into a file that already has the bytes `before`. Returns the result, the bytes
/// of the file, and the reported progress.
fn fetch(server: &Server, before: &[u8]) -> (Result<(), Error>, Vec<u8>, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blob");
    fs::write(&path, before).expect("written");
    let wanted = Descriptor {
        media_type: MediaType::new("application/vnd.oci.image.layer.v1.tar").expect("a media type"),
        digest: digest(BLOB),
        size: BLOB.len() as u64,
        platform: None,
    };
    let mut advanced = 0;
    let session = Session::new(server);
    let fetched = fetch_blob(&session, &image(":1"), &wanted, &path, &mut |bytes| {
        advanced += bytes;
    });
    (fetched, fs::read(&path).expect("read"), advanced)
}

/// Serves [`BLOB`], and supports ranges.
fn blob_with_ranges(request: &ReceivedRequest) -> Vec<u8> {
    let range = request.header("range").map(str::to_owned);
    let Some(start) = range.and_then(|range| {
        let text = range.strip_prefix("bytes=")?.strip_suffix('-')?;
        text.parse::<usize>().ok()
    }) else {
        return ok("application/octet-stream", BLOB);
    };
    let content_range = format!("bytes {start}-{}/{}", BLOB.len() - 1, BLOB.len());
    response(
        "206 Partial Content",
        &[("content-range", &content_range)],
        &BLOB[start..],
    )
}

#[test]
fn a_blob_is_resumed_after_the_bytes_of_its_file() {
    let server = TestServer::start(blob_with_ranges);
    for (before, range) in [(&b""[..], None), (&BLOB[..9], Some("bytes=9-"))] {
        let (fetched, bytes, advanced) = fetch(&server.server(), before);
        fetched.expect("fetched");
        assert_eq!(bytes, BLOB);
        assert_eq!(advanced, BLOB.len() as u64);
        let last = server.requests().pop().expect("a request");
        assert_eq!(last.header("range"), range);
    }
    let requests = server.requests().len();
    fetch(&server.server(), BLOB).0.expect("complete already");
    assert_eq!(
        server.requests().len(),
        requests,
        "nothing is left to request"
    );
    // If the file is longer than the blob, the client fetches the blob again from the start.
    let (fetched, bytes, _) = fetch(&server.server(), &[BLOB, b"more"].concat());
    fetched.expect("fetched anew");
    assert_eq!(bytes, BLOB);
}

#[test]
fn a_server_without_ranges_sends_the_first_bytes_again() {
    let server = TestServer::start(|_| ok("application/octet-stream", BLOB));
    let (fetched, bytes, _) = fetch(&server.server(), &BLOB[..9]);
    fetched.expect("fetched");
    assert_eq!(bytes, BLOB);
}

#[test]
fn a_broken_transfer_continues_where_it_stopped() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let server = TestServer::start(move |request| {
        let full = blob_with_ranges(request);
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => full[..full.len() - 7].to_vec(),
            _ => full,
        }
    });
    let (fetched, bytes, advanced) = fetch(&server.server(), b"");
    fetched.expect("fetched");
    assert_eq!((bytes.as_slice(), advanced), (BLOB, BLOB.len() as u64));
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .map(|request| request.header("range").map(str::to_owned))
        .collect();
    let rest = format!("bytes={}-", BLOB.len() - 7);
    assert_eq!(ranges, [None, Some(rest)]);
}

#[test]
fn a_file_with_wrong_bytes_is_emptied() {
    let mut wrong = BLOB.to_vec();
    wrong[3] ^= 1;
    let server = TestServer::start(move |_| ok("application/octet-stream", &wrong));
    let (fetched, bytes, _) = fetch(&server.server(), b"");
    let error = fetched.expect_err("another digest");
    assert!(matches!(error, Error::Digest { .. }), "{error}");
    assert!(bytes.is_empty(), "a retry must not use the wrong bytes");
}

#[test]
fn a_blob_of_another_length_or_range_is_refused() {
    let longer = [BLOB, b"more"].concat();
    let server = TestServer::start(move |_| ok("application/octet-stream", &longer));
    let error = fetch(&server.server(), b"").0.expect_err("too long");
    assert!(
        error
            .to_string()
            .contains("longer than its manifest states"),
        "{error}"
    );
    let server = TestServer::start(|_| {
        response(
            "206 Partial Content",
            &[("content-range", "bytes 3-21/22")],
            &BLOB[3..],
        )
    });
    let error = fetch(&server.server(), &BLOB[..9])
        .0
        .expect_err("another range");
    assert!(error.to_string().contains("another range"), "{error}");
}

#[test]
fn credentials_do_not_follow_a_redirect_to_another_server() {
    let storage = TestServer::start(blob_with_ranges);
    let location = format!("{}/storage/blob?signature=x", storage.url());
    let server = TestServer::start(move |_| {
        response("307 Temporary Redirect", &[("location", &location)], b"")
    });
    let (fetched, bytes, _) = fetch(&server.server_as(Some("Basic dXNlcjpwdw==")), &BLOB[..4]);
    fetched.expect("fetched");
    assert_eq!(bytes, BLOB);
    assert_eq!(
        server.requests()[0].header("authorization"),
        Some("Basic dXNlcjpwdw==")
    );
    let at_storage = &storage.requests()[0];
    assert_eq!(at_storage.header("authorization"), None);
    assert_eq!(at_storage.header("range"), Some("bytes=4-"));
    assert!(
        at_storage
            .head
            .starts_with("GET /storage/blob?signature=x ")
    );
}

#[test]
fn endless_and_invalid_redirects_are_refused() {
    let server =
        TestServer::start(|_| response("307 Temporary Redirect", &[("location", "/x")], b""));
    let error = fetch(&server.server(), b"").0.expect_err("a loop");
    assert!(error.to_string().contains("too many redirects"), "{error}");
    assert_eq!(server.requests().len(), MAX_REDIRECTS + 1);
    let server = TestServer::start(|_| response("302 Found", &[("location", "ftp://x/")], b""));
    let error = fetch(&server.server(), b"").0.expect_err("no URL of HTTP");
    assert!(
        error.to_string().contains("without a valid location"),
        "{error}"
    );
}
