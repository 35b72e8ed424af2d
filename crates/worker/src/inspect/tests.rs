//! Tests of `pierhead inspect` and `pierhead diff` with a test server and with a store.

use pierhead_bundle::api::{BundleQuery, MEDIA_TYPE, OrderSource};
use pierhead_oci::Platform;
use tempfile::TempDir;

use super::*;
use crate::NoProgress;
use crate::http::test_server::Connect as _;
use crate::pull::{PullOptions, pull};
use crate::store::Store;
use crate::store::tests::{Encoded, TestImage, encode, noise};
use pierhead_testkit::http::server::{TestServer, refusal, response};

fn platform() -> Platform {
    "linux/amd64".parse().expect("a platform")
}

fn reference(text: &str) -> Reference {
    text.parse().expect("a reference")
}

fn bundle(encoded: &Encoded) -> Vec<u8> {
    let etag = encoded.prelude.etag();
    let headers = [("content-type", MEDIA_TYPE), ("etag", &*etag)];
    response("200 OK", &headers, &encoded.bytes())
}

fn start_order(files: usize) -> StartOrder {
    StartOrder {
        source: OrderSource::Config,
        files: (0..files).map(|number| format!("file-{number}")).collect(),
        applied: true,
        layers: 2,
        layers_waiting: 1,
    }
}

/// Serves the bundle of an image, and the start order of the image if there is one.
fn server(image: &TestImage, order: Option<StartOrder>) -> TestServer {
    let encoded = encode(image, None, false);
    TestServer::start(move |request| {
        let query: BundleQuery = serde_json::from_slice(&request.body).expect("a query");
        match &order {
            Some(order) if query.start_order => {
                let json = serde_json::to_vec(order).expect("JSON");
                response("200 OK", &[("content-type", "application/json")], &json)
            }
            _ => bundle(&encoded),
        }
    })
}

/// Pulls images into one store, each image under a tag that is its position in `images`.
fn store_of(images: &[&TestImage]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    for (tag, image) in images.iter().enumerate() {
        let options = PullOptions {
            image: reference(&format!("registry.example/app:{tag}")),
            platform: platform(),
            requires_platform: false,
            store: Store::open(folder.path(), &[]).expect("a store"),
            connections: std::num::NonZeroUsize::new(1),
            layers_only: false,
            export: None,
        };
        pull(&server(image, None).server(), options, &NoProgress).expect("pulled");
    }
    folder
}

fn images() -> (TestImage, TestImage) {
    let old = TestImage::of(&[
        ("a", noise(1, 3000)),
        ("b", noise(2, 4000)),
        ("c", noise(3, 10)),
    ]);
    let new = TestImage::of(&[("a", noise(1, 3000)), ("d", noise(4, 500))]);
    (old, new)
}

#[test]
fn a_server_describes_an_image_with_its_start_order() {
    let (image, _) = images();
    let server = server(&image, Some(start_order(30)));
    let source = ImageSource::new(Some(&server.server()), None, platform()).expect("a source");
    let name = reference("registry.example/app:1");
    let report = inspect(&source, &name, &NoProgress).expect("a report");
    assert_eq!(report.digest, image.digest().to_string());
    // The four entries are three files and the root folder.
    assert_eq!(
        (report.entries, report.contents, report.bytes),
        (4, 3, 7010)
    );
    assert!(report.shared.is_empty(), "there is no store");
    assert_eq!(report.hot.len(), MAX_HOT_FILES);
    assert_eq!(report.hot[0], "file-0");
    assert_eq!(report.start_order, Some(start_order(30)));
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["start_order"]["layers_waiting"], 1);
}

#[test]
fn an_older_server_without_start_orders_is_accepted() {
    let (image, _) = images();
    let server = server(&image, None);
    let source = ImageSource::new(Some(&server.server()), None, platform()).expect("a source");
    let name = reference("registry.example/app:1");
    let report = inspect(&source, &name, &NoProgress).expect("a report");
    assert_eq!((report.start_order, report.hot.len()), (None, 0));
}

#[test]
fn a_server_without_bundles_is_an_error() {
    let (image, _) = images();
    let manifest = image.manifest();
    let server = TestServer::start(move |request| match request.head.starts_with("POST ") {
        true => refusal("404 Not Found", "UNSUPPORTED"),
        false => {
            let media_type = "application/vnd.oci.image.manifest.v1+json";
            response("200 OK", &[("content-type", media_type)], &manifest)
        }
    });
    let source = ImageSource::new(Some(&server.server()), None, platform()).expect("a source");
    let name = reference("registry.example/app:1");
    let error = inspect(&source, &name, &NoProgress)
        .err()
        .expect("no bundle");
    assert!(matches!(error, Error::NoBundle(_)), "{error}");
    assert_eq!(error.fault(), crate::Fault::Server);
}

#[test]
fn a_store_describes_its_images_by_tag_and_by_digest() {
    let (old, new) = images();
    let folder = store_of(&[&old, &new]);
    let store = || Store::open(folder.path(), &[]).expect("a store");
    let source = ImageSource::new(None, Some(store()), platform()).expect("a source");
    for name in [
        "registry.example/app:0".to_owned(),
        format!("registry.example/app@{}", old.digest()),
    ] {
        let report = inspect(&source, &reference(&name), &NoProgress).expect("a report");
        assert_eq!(report.digest, old.digest().to_string());
        assert_eq!(report.start_order, None);
        // The two images have one file in common.
        let [shared] = &report.shared[..] else {
            panic!("one other image");
        };
        assert_eq!(shared.image, "registry.example/app:1");
        assert_eq!((shared.contents, shared.bytes), (1, 3000));
    }
    let unknown = format!("registry.example/app@sha256:{}", "0".repeat(64));
    for name in [
        "registry.example/app:2",
        "registry.example/other:0",
        &unknown,
    ] {
        let error = inspect(&source, &reference(name), &NoProgress).err();
        let error = error.expect("not in the store");
        assert!(matches!(error, Error::NotStored { .. }), "{error}");
    }
    let arm = "linux/arm64".parse().expect("a platform");
    let source = ImageSource::new(None, Some(store()), arm).expect("a source");
    let name = reference("registry.example/app:0");
    let error = inspect(&source, &name, &NoProgress).err();
    let error = error.expect("another platform").to_string();
    assert!(error.contains("linux/arm64"), "{error}");
    let error = ImageSource::new(None, None, platform()).err();
    assert!(matches!(error, Some(Error::Usage(_))));
}

#[test]
fn the_most_similar_image_of_a_store_comes_first() {
    let (old, new) = images();
    let similar = TestImage::of(&[("a", noise(1, 3000)), ("b", noise(2, 4000))]);
    let folder = store_of(&[&new, &old, &similar]);
    let store = Store::open(folder.path(), &[]).expect("a store");
    let source = ImageSource::new(None, Some(store), platform()).expect("a source");
    let name = reference("registry.example/app:1");
    let report = inspect(&source, &name, &NoProgress).expect("a report");
    let shared: Vec<_> = report.shared.iter().map(|it| it.bytes).collect();
    assert_eq!(shared, [7000, 3000]);
}

#[test]
fn a_diff_counts_files_and_the_bytes_of_the_bundle() {
    let (old, new) = images();
    let (full, update) = (encode(&old, None, false), encode(&new, Some(&old), false));
    let whole = encode(&new, None, false);
    let sizes = (update.body.len(), update.records.clone());
    let server = TestServer::start(move |request| {
        let query: BundleQuery = serde_json::from_slice(&request.body).expect("a query");
        match (query.want.as_str(), query.base_images.is_empty()) {
            ("0", _) => bundle(&full),
            (_, true) => bundle(&whole),
            (_, false) => bundle(&update),
        }
    });
    let source = ImageSource::new(Some(&server.server()), None, platform()).expect("a source");
    let (from, to) = (
        reference("registry.example/app:0"),
        reference("registry.example/app:1"),
    );
    let report = diff(&source, &from, &to, &NoProgress).expect("a report");
    assert_eq!((report.files.count, report.files.bytes), (1, 500));
    assert_eq!((report.layers.count, report.layers.bytes), (0, 0));
    let size = report.bundle.expect("a bundle");
    // Each record has a head of 40 bytes, which is not payload.
    let payload: usize = sizes.1.iter().map(|record| record.len() - 40).sum();
    assert_eq!(size.header, sizes.0 as u64);
    assert_eq!(size.bytes, (sizes.0 + payload) as u64);
    assert_eq!(size.full.count + size.patched.count, sizes.1.len() as u64);
    assert_eq!(size.chunked.count, 0);
}

#[test]
fn a_diff_of_two_stored_images_needs_no_server() {
    let (old, new) = images();
    let folder = store_of(&[&old, &new]);
    let store = Store::open(folder.path(), &[]).expect("a store");
    let source = ImageSource::new(None, Some(store), platform()).expect("a source");
    let (from, to) = (
        reference("registry.example/app:0"),
        reference("registry.example/app:1"),
    );
    let report = diff(&source, &from, &to, &NoProgress).expect("a report");
    assert_eq!((report.files.count, report.files.bytes), (1, 500));
    assert!(report.bundle.is_none());
    let json = serde_json::to_value(&report).expect("JSON");
    assert!(json.get("bundle").is_none(), "{json}");
}
