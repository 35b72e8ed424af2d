//! Tests of pulls as layers, from a registry without bundles.

use pierhead_testkit::images::{Blob, Document, Image as RegistryImage, digest_of};
use pierhead_toc::{FileDigest, Source as _, TocView, Tree};
use serde_json::Value;

use super::*;

const IMAGE: &str = "registry.example/app:1";

/// Returns the tar of a layer with these files.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, *bytes).expect("a file");
    }
    tar.into_inner().expect("a tar")
}

fn image(tars: &[Vec<u8>]) -> RegistryImage {
    RegistryImage::of_tars("amd64", tars)
}

/// Serves an image without bundles. `blob` computes the response to the request of a blob.
fn registry_with(
    image: RegistryImage,
    blob: impl Fn(usize, &Blob) -> Vec<u8> + Send + Sync + 'static,
) -> TestServer {
    TestServer::start(move |request| {
        let target = request.target();
        let name = target.rsplit('/').next().unwrap_or_default();
        if target.starts_with("POST ") {
            return refusal("404 Not Found", "UNSUPPORTED");
        }
        if target.contains("/manifests/") {
            let mut documents = image.documents.iter();
            let named = documents.find(|document| document.digest.to_string() == name);
            let found = named.unwrap_or_else(|| image.root_document());
            return response(
                "200 OK",
                &[("content-type", &found.media_type)],
                &found.bytes,
            );
        }
        let mut blobs = image.blobs.iter().enumerate();
        match blobs.find(|(_, blob)| blob.digest.to_string() == name) {
            Some((nth, found)) => blob(nth, found),
            None => refusal("404 Not Found", "BLOB_UNKNOWN"),
        }
    })
}

fn registry(image: RegistryImage) -> TestServer {
    registry_with(image, |_, blob| response("200 OK", &[], &blob.bytes))
}

/// Replaces the config of an image, and its descriptor in the manifest.
fn with_config(mut image: RegistryImage, change: impl Fn(&mut Value)) -> RegistryImage {
    let mut manifest: Value =
        serde_json::from_slice(&image.root_document().bytes).expect("a manifest");
    let config = manifest["config"]["digest"].as_str().expect("a digest");
    let blob = image
        .blobs
        .iter_mut()
        .find(|blob| blob.digest.to_string() == config)
        .expect("a config");
    let mut json: Value = serde_json::from_slice(&blob.bytes).expect("a config");
    change(&mut json);
    let bytes = json.to_string();
    manifest["config"]["digest"] = digest_of(bytes.as_bytes()).to_string().into();
    manifest["config"]["size"] = bytes.len().into();
    blob.digest = digest_of(bytes.as_bytes());
    blob.bytes = bytes.into();
    let root = Document::new(&manifest);
    image.root = root.digest;
    image.documents = vec![root];
    image
}

fn requested_blobs(server: &TestServer) -> usize {
    let targets = server.targets();
    let blobs = targets.iter().filter(|target| target.contains("/blobs/"));
    blobs.count()
}

#[test]
fn an_image_without_a_bundle_is_pulled_as_layers() {
    let image = image(&[
        tar(&[("bin/a", b"lower a"), ("etc/b", b"b")]),
        tar(&[("bin/a", b"upper a"), ("c", b"b")]),
    ]);
    let (root, server) = (image.root, registry(image));
    let store = TempDir::new().expect("a folder");
    let report = pull_into(&server, &store, IMAGE).expect("pulled");
    assert_eq!(report.method, PullMethod::Layers);
    let reason = report.reason.expect("a reason");
    assert!(reason.contains("offers no bundles"), "{reason}");
    assert_eq!(report.digest, root.to_string());
    assert_eq!(report.contents.full, 2, "upper a, and b once");
    assert_eq!(stored(&store), [root]);
    let opened = Store::open(store.path(), &[]).expect("a store");
    let mut bytes = [0; 7];
    let content = FileDigest::of(b"upper a");
    opened.read_at(&content, 0, &mut bytes).expect("stored");
    assert_eq!(&bytes, b"upper a");
    let lower = FileDigest::of(b"lower a");
    assert_eq!(opened.size(&lower).expect("read"), None, "a hidden file");
    assert!(
        !store.path().join("layers").exists(),
        "the layers are removed"
    );
}

#[test]
fn layers_only_sends_no_request_for_a_bundle() {
    let server = registry(image(&[tar(&[("a", b"a")])]));
    let store = TempDir::new().expect("a folder");
    let options = || PullOptions {
        image: IMAGE.parse().expect("a reference"),
        platform: platform(),
        requires_platform: false,
        store: Store::open(store.path(), &[]).expect("a store"),
        connections: None,
        layers_only: true,
        export: None,
    };
    let report = pull(&server.server(), options(), &NoProgress).expect("pulled");
    assert_eq!((report.method, report.reason), (PullMethod::Layers, None));
    let first = server.targets();
    assert!(first.iter().all(|target| target.starts_with("GET ")));
    // A second pull of the same image requests only the manifest.
    let report = pull(&server.server(), options(), &NoProgress).expect("stored");
    assert_eq!((report.contents.full, report.contents.reused), (0, 1));
    assert_eq!(requested_blobs(&server), 2, "a config and a layer");
}

#[test]
fn whiteouts_hide_files_of_lower_layers() {
    let image = image(&[
        tar(&[("a", b"1"), ("d/e", b"22"), ("d/f", b"333"), ("g", b"4444")]),
        tar(&[(".wh.a", b""), ("d/.wh..wh..opq", b""), ("d/h", b"55555")]),
    ]);
    let (root, server) = (image.root, registry(image));
    let store = TempDir::new().expect("a folder");
    pull_into(&server, &store, IMAGE).expect("pulled");
    let opened = Store::open(store.path(), &[]).expect("a store");
    let stored = opened.image(&root).expect("an image");
    let tree = Tree::of(TocView::mounted(&stored.toc)).expect("a tree");
    let has = |path: &str| tree.file(path.as_bytes()).is_some();
    assert_eq!(["a", "d/e", "d/f"].map(has), [false; 3]);
    assert_eq!(["d/h", "g"].map(has), [true; 2]);
    let hidden = [&b"1"[..], b"22", b"333"].map(FileDigest::of);
    for content in hidden {
        assert_eq!(opened.size(&content).expect("read"), None);
    }
}

#[test]
fn a_layer_that_does_not_match_its_diff_id_is_refused() {
    let other = digest_of(b"another layer").to_string();
    let image = with_config(image(&[tar(&[("a", b"a")])]), |config| {
        config["rootfs"]["diff_ids"][0] = other.clone().into();
    });
    let store = TempDir::new().expect("a folder");
    let error = pull_into(&registry(image), &store, IMAGE).expect_err("another layer");
    let is_digest = matches!(&error, Error::Digest { .. });
    assert!(is_digest, "{error:?}");
    assert!(stored(&store).is_empty());
}

#[test]
fn a_config_with_another_number_of_layers_is_refused() {
    for change in [0, 2] {
        let image = with_config(image(&[tar(&[("a", b"a")])]), |config| {
            let diff_ids = &mut config["rootfs"]["diff_ids"];
            *diff_ids = vec![diff_ids[0].clone(); change].into();
        });
        let store = TempDir::new().expect("a folder");
        let error = pull_into(&registry(image), &store, IMAGE).expect_err("refused");
        assert!(
            error.to_string().contains("another number of layers"),
            "{error}"
        );
        assert_eq!(error.fault(), crate::Fault::Image);
    }
}

#[test]
fn a_corrupt_layer_is_not_stored_and_the_next_pull_fetches_it_again() {
    let image = image(&[tar(&[("a", b"a")])]);
    let (root, good) = (image.root, registry(image.clone()));
    let corrupt = registry_with(image, |_, blob| {
        let mut bytes = blob.bytes.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        response("200 OK", &[], &bytes)
    });
    let store = TempDir::new().expect("a folder");
    let error = pull_into(&corrupt, &store, IMAGE).expect_err("corrupt");
    assert_eq!(error.fault(), crate::Fault::Image, "{error}");
    assert!(stored(&store).is_empty());
    pull_into(&good, &store, IMAGE).expect("pulled");
    assert_eq!(stored(&store), [root]);
}

#[test]
fn a_failed_pull_of_layers_resumes_with_its_files() {
    let image = image(&[tar(&[("a", b"a")]), tar(&[("b", b"b")])]);
    let good = registry(image.clone());
    let layers = image.blobs.len() - 1;
    // The test server refuses the last blob that the pull requests.
    let seen = AtomicUsize::new(0);
    let broken = registry_with(image, move |_, blob| {
        match seen.fetch_add(1, Ordering::Relaxed) == layers {
            true => refusal("403 Forbidden", "DENIED"),
            false => response("200 OK", &[], &blob.bytes),
        }
    });
    let store = TempDir::new().expect("a folder");
    let error = pull_into(&broken, &store, IMAGE).expect_err("refused");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let report = pull_into(&good, &store, IMAGE).expect("resumed");
    assert_eq!(report.contents.full, 2);
    assert_eq!(requested_blobs(&good), 1, "only the refused blob");
}

#[test]
fn an_image_of_another_platform_is_an_error_or_a_warning() {
    let server = registry(RegistryImage::of_tars("arm64", &[tar(&[("a", b"a")])]));
    let store = TempDir::new().expect("a folder");
    let options = PullOptions {
        image: IMAGE.parse().expect("a reference"),
        platform: platform(),
        requires_platform: true,
        store: Store::open(store.path(), &[]).expect("a store"),
        connections: None,
        layers_only: true,
        export: None,
    };
    let why = "the image is for linux/arm64, not for linux/amd64";
    let refused = pull(&server.server(), options, &NoProgress).expect_err("another platform");
    assert!(
        matches!(&refused, Error::Image(text) if text.ends_with(why)),
        "{refused}"
    );
    assert_eq!(requested_blobs(&server), 1, "the config, and no layer");
    let report = pull_into(&server, &store, IMAGE).expect("pulled");
    assert_eq!(report.warnings, [why]);
    let stored = pull_into(&server, &store, IMAGE).expect("stored");
    assert_eq!(stored.warnings, [why]);
}

#[test]
fn an_image_of_an_index_has_the_platform_of_its_entry() {
    let mut image = RegistryImage::of_tars("arm64", &[tar(&[("a", b"a")])]);
    let mut entry = image.root_document().descriptor();
    entry["platform"] = serde_json::json!({ "os": "linux", "architecture": "amd64" });
    let index = Document::new(&serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry],
    }));
    image.root = index.digest;
    image.documents.push(index);
    let server = registry(image);
    let store = TempDir::new().expect("a folder");
    let options = PullOptions {
        image: IMAGE.parse().expect("a reference"),
        platform: platform(),
        requires_platform: true,
        store: Store::open(store.path(), &[]).expect("a store"),
        connections: None,
        layers_only: true,
        export: None,
    };
    let report = pull(&server.server(), options, &NoProgress).expect("pulled");
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
}
