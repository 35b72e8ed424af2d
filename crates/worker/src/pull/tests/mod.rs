//! Tests of whole pulls from a test server: pulls as bundles, resumed pulls, changed bundles,
//! fallbacks and messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use pierhead_bundle::api::{BundleQuery, MEDIA_TYPE};
use pierhead_oci::Digest;
use pierhead_testkit::wait::until;
use tempfile::TempDir;

use super::*;
use crate::http::test_server::Connect as _;
use crate::store::tests::{Encoded, TestImage, encode, noise};
use crate::{NoProgress, Unit, store};
use pierhead_testkit::http::server::{ReceivedRequest, TestServer, refusal, response};

mod layers;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";

/// Returns two versions of the test image, without the file of 9 MB, so that these tests are fast.
fn versions() -> (TestImage, TestImage) {
    let (mut old, mut new) = store::tests::versions();
    for test_image in [&mut old, &mut new] {
        test_image.files.remove(&b"c/large"[..]);
    }
    (old, new)
}

fn platform() -> Platform {
    "linux/amd64".parse().expect("a platform")
}

fn pull_into(server: &TestServer, store: &TempDir, image: &str) -> Result<PullReport, Error> {
    pull_with(server, store, image, &NoProgress)
}

fn pull_with(
    server: &TestServer,
    store: &TempDir,
    image: &str,
    progress: &dyn Progress,
) -> Result<PullReport, Error> {
    let options = PullOptions {
        image: image.parse().expect("a reference"),
        platform: platform(),
        requires_platform: false,
        store: Store::open(store.path(), &[]).expect("a store"),
        connections: NonZeroUsize::new(1),
        layers_only: false,
        export: None,
    };
    pull(&server.server(), options, progress)
}

fn bundle(encoded: &Encoded, bytes: &[u8]) -> Vec<u8> {
    let etag = encoded.prelude.etag();
    response(
        "200 OK",
        &[("content-type", MEDIA_TYPE), ("etag", &etag)],
        bytes,
    )
}

fn query_of(request: &ReceivedRequest) -> BundleQuery {
    serde_json::from_slice(&request.body).expect("a request in JSON")
}

/// Returns the queries of all requests for bundles that the server received.
fn queries(server: &TestServer) -> Vec<BundleQuery> {
    let requests = server.requests();
    let bundles = requests
        .iter()
        .filter(|request| request.head.starts_with("POST "));
    bundles.map(query_of).collect()
}

/// Serves the bundle of one image, in full and in parts.
fn bundle_server(test_image: &TestImage) -> TestServer {
    let encoded = encode(test_image, None, false);
    TestServer::start(move |request| match query_of(request).part {
        None => bundle(&encoded, &encoded.bytes()),
        Some(part) => bundle(
            &encoded,
            &encoded.part(usize::try_from(part.first).expect("small")),
        ),
    })
}

fn stored(folder: &TempDir) -> Vec<Digest> {
    let store = Store::open(folder.path(), &[]).expect("a store");
    let images = store.images().expect("images");
    images.iter().map(|image| image.manifest).collect()
}

#[test]
fn a_pulled_bundle_is_recorded_with_its_name() {
    let (image, _) = versions();
    let (server, store) = (bundle_server(&image), TempDir::new().expect("a folder"));
    let report = pull_into(&server, &store, "registry.example/app:1").expect("pulled");
    assert_eq!(report.image, "registry.example/app:1");
    assert_eq!(report.digest, image.digest().to_string());
    assert_eq!((report.method, report.reason), (PullMethod::Bundle, None));
    assert_eq!(
        (report.contents.full, report.base_images, report.connections),
        (3, 0, 1)
    );
    assert!(report.bytes_received > 20_000 && report.warnings.is_empty());
    assert_eq!(stored(&store), [image.digest()]);
    let names = ImageNames::read(std::iter::once(store.path()));
    let reference = "registry.example/app:1".parse().expect("a reference");
    assert_eq!(names.find(&reference, &platform()), Some(image.digest()));
    // A second pull of the image by its digest needs no server.
    let requests = server.requests().len();
    let named = format!("registry.example/app@{}", image.digest());
    let report = pull_into(&server, &store, &named).expect("stored");
    assert_eq!(server.requests().len(), requests);
    assert!(report.contents.reused > 0 && report.contents.full == 0);
}

#[test]
fn an_update_names_the_stored_image_and_applies_its_contents() {
    let (old, new) = versions();
    let store = TempDir::new().expect("a folder");
    pull_into(&bundle_server(&old), &store, "registry.example/app:1").expect("pulled");
    let update = encode(&new, Some(&old), false);
    let server = TestServer::start(move |_| bundle(&update, &update.bytes()));
    let report = pull_into(&server, &store, "registry.example/app:2").expect("updated");
    let query = &queries(&server)[0];
    assert_eq!(
        (query.want.as_str(), &query.base_images),
        ("2", &vec![old.digest()])
    );
    assert_eq!((report.base_images, report.base_images_unused), (1, 0));
    assert!(
        report.contents.chunked == 1 && report.contents.reused == 2,
        "{:?}",
        report.contents
    );
    assert_eq!(stored(&store).len(), 2);
}

#[test]
fn an_interrupted_response_is_continued_after_its_last_record() {
    let (image, _) = versions();
    let encoded = encode(&image, None, false);
    let attempts = AtomicUsize::new(0);
    let server = TestServer::start(move |request| match query_of(request).part {
        Some(part) => bundle(
            &encoded,
            &encoded.part(usize::try_from(part.first).expect("small")),
        ),
        None => {
            attempts.fetch_add(1, Ordering::Relaxed);
            let full = bundle(&encoded, &encoded.bytes());
            let last = encoded.records.last().expect("records").len();
            full[..full.len() - last - 50].to_vec()
        }
    });
    let store = TempDir::new().expect("a folder");
    let report = pull_into(&server, &store, "registry.example/app:1").expect("pulled");
    assert_eq!(report.contents.full, 3);
    let queries = queries(&server);
    assert_eq!(queries.len(), 2);
    let part = queries[1].part.as_ref().expect("a part");
    assert!(part.first > 0, "the first records are applied");
    assert_eq!(
        Some(part.etag.clone()),
        Some(encode(&image, None, false).prelude.etag())
    );
}

#[test]
fn the_next_pull_resumes_a_failed_pull() {
    let (image, _) = versions();
    let encoded = encode(&image, None, false);
    let store = TempDir::new().expect("a folder");
    let broken = TestServer::start(move |request| match query_of(request).part {
        Some(_) => refusal("401 Unauthorized", "UNAUTHORIZED"),
        None => {
            let full = bundle(&encoded, &encoded.bytes());
            let last = encoded.records.last().expect("records").len();
            full[..full.len() - last - 50].to_vec()
        }
    });
    let error = pull_into(&broken, &store, "registry.example/app:1").expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(stored(&store).is_empty(), "nothing incomplete is visible");
    let server = bundle_server(&image);
    let report = pull_into(&server, &store, "registry.example/app:1").expect("resumed");
    assert!(report.frames_resumed > 0);
    assert!(
        queries(&server)[0].part.is_some(),
        "only the rest is requested"
    );
    assert_eq!(stored(&store), [image.digest()]);
}

#[test]
fn a_replaced_bundle_is_requested_again() {
    let (old, new) = versions();
    let (first, second) = (encode(&old, None, false), encode(&new, None, false));
    let attempts = AtomicUsize::new(0);
    let server = TestServer::start(move |request| {
        let is_first = attempts.fetch_add(1, Ordering::Relaxed) == 0;
        match (is_first, query_of(request).part) {
            (true, _) => {
                let full = bundle(&first, &first.bytes());
                full[..full.len() - 3000].to_vec()
            }
            // The server has another bundle now, and ignores the part of the old bundle.
            (false, _) => bundle(&second, &second.bytes()),
        }
    });
    let store = TempDir::new().expect("a folder");
    let report = pull_into(&server, &store, "registry.example/app:1").expect("pulled");
    assert_eq!(report.digest, new.digest().to_string());
    assert_eq!(stored(&store), [new.digest()]);
    let parts: Vec<_> = queries(&server)
        .iter()
        .map(|query| query.part.is_some())
        .collect();
    assert_eq!(parts, [false, true, false]);
}

#[test]
fn an_image_that_does_not_match_the_requested_digest_is_refused() {
    let (old, new) = versions();
    let (encoded, manifest) = (encode(&new, None, false), old.manifest());
    let server = TestServer::start(move |request| match request.head.starts_with("POST ") {
        true => bundle(&encoded, &encoded.bytes()),
        false => response("200 OK", &[("content-type", MANIFEST_TYPE)], &manifest),
    });
    let store = TempDir::new().expect("a folder");
    let named = format!("registry.example/app@{}", old.digest());
    let error = pull_into(&server, &store, &named).expect_err("another image");
    assert!(error.to_string().contains("sent another image"), "{error}");
    assert!(stored(&store).is_empty());
}

#[test]
fn a_pull_with_a_corrupt_content_fails() {
    let image = TestImage::of(&[("a", noise(1, 3000)), ("b", noise(2, 9000))]);
    let other = TestImage::of(&[("a", noise(7, 3000)), ("b", noise(2, 9000))]);
    let (encoded, wrong) = (encode(&image, None, false), encode(&other, None, false));
    // The server sends the header of this image with the records of another image.
    let part = wrong.part(0);
    let records = &part[encoded.prelude.encode().len()..];
    let bytes = [&encoded.prelude.encode()[..], &encoded.body, records].concat();
    let server = TestServer::start(move |_| bundle(&encoded, &bytes));
    let store = TempDir::new().expect("a folder");
    let error = pull_into(&server, &store, "registry.example/app:1").expect_err("wrong bytes");
    assert!(
        error.to_string().contains("a content of a bundle"),
        "{error}"
    );
    assert!(stored(&store).is_empty(), "no wrong byte becomes visible");
}

/// Collects the lines that a pull shows to the user.
#[derive(Default)]
struct RecordedLines(Mutex<Vec<String>>);

impl Progress for RecordedLines {
    fn begin(&self, _: &str, _: Unit, _: u64) {}
    fn set(&self, _: u64) {}
    fn advance(&self, _: u64) {}
    fn note(&self, line: &str) {
        self.0.lock().push(line.to_owned());
    }
    fn is_drawn(&self) -> bool {
        false
    }
}

#[test]
fn a_second_pull_of_an_image_waits_for_the_first_and_reuses_its_contents() {
    let (image, _) = versions();
    let encoded = Arc::new(encode(&image, None, false));
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(receiver);
    let responses = AtomicUsize::new(0);
    let shared = Arc::clone(&encoded);
    // The server sends the rest of the first bundle as soon as the second pull waits for the first
    // pull.
    let server = TestServer::start(move |request| match query_of(request).part {
        Some(part) => {
            let _ = gate.lock().recv();
            bundle(
                &shared,
                &shared.part(usize::try_from(part.first).expect("small")),
            )
        }
        None if responses.fetch_add(1, Ordering::Relaxed) == 0 => {
            let full = bundle(&shared, &shared.bytes());
            full[..full.len() - 3000].to_vec()
        }
        None => bundle(&shared, &shared.bytes()),
    });
    let store = TempDir::new().expect("a folder");
    let lines = RecordedLines::default();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| pull_into(&server, &store, "registry.example/app:1"));
        until("two requests", || server.requests().len() >= 2);
        let second = scope.spawn(|| pull_with(&server, &store, "registry.example/app:1", &lines));
        until("a line", || !lines.0.lock().is_empty());
        // Dropping the sender opens the gate for all requests.
        drop(sender);
        first.join().expect("no panic").expect("pulled");
        let report = second.join().expect("no panic").expect("pulled");
        assert_eq!(
            report.contents.full, 0,
            "the first pull stored all contents"
        );
    });
    assert!(lines.0.lock()[0].contains("another pierhead pulls this image"));
    assert_eq!(stored(&store), [image.digest()]);
}
