//! Tests of exports as OCI layout and as Docker archive: documents, names, rebuilt layers (which
//! have the bytes of the original tars), and exports that were killed.
#![allow(clippy::unwrap_used, reason = "all of it is test")]
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use std::cell::Cell;
use std::fs;
use std::io::Read as _;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::source::{MemoryBlob, MemorySource};
use pierhead_toc::layer::{self, Limits, NoPacing};
use pierhead_toc::{ImageToc, Source as _};
use pierhead_worker::Error;
use pierhead_worker::export::{ImageLabels, ORIGINAL_MANIFEST, archive, layout};
use pierhead_worker::store::Image;
use serde_json::{Value, json};

fn tar(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut tar = tar::Builder::new(Vec::new());
    for number in 0..20 {
        let len = if number % 5 == 0 {
            0
        } else {
            random.usize(1..40_000)
        };
        let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let mut header = tar::Header::new_ustar();
        header.set_size(len as u64);
        header.set_mode(0o644);
        header.set_mtime(random.u64(..1 << 31));
        tar.append_data(&mut header, format!("{seed}/file-{number}"), &bytes[..])
            .unwrap();
    }
    tar.into_inner().unwrap()
}

/// Returns an image of these layers, and a source of its file contents. If `is_uncompressed` is
/// false, the manifest names other digests than those of the tars, as for compressed layers.
fn image(tars: &[Vec<u8>], is_uncompressed: bool) -> (Image, MemorySource) {
    let folder = tempfile::tempdir().unwrap();
    let mut source = MemorySource::default();
    let mut layers = Vec::new();
    let (mut diff_ids, mut named) = (Vec::new(), Vec::new());
    for (number, tar) in tars.iter().enumerate() {
        let diff_id = Digest::of(Algorithm::Sha256, tar);
        let request = layer::Request {
            media_type: "application/vnd.oci.image.layer.v1.tar",
            diff_id: &diff_id,
            limits: Limits::default(),
        };
        let path = folder.path().join(number.to_string());
        let index = layer::index(&MemoryBlob(tar.clone()), &request, &mut NoPacing, &path).unwrap();
        let (skeleton, size) = index.skeleton();
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        index
            .reader(Arc::new(MemoryBlob(tar.clone())))
            .read_at(&skeleton, 0, &mut bytes)
            .unwrap();
        source.add(bytes);
        for entry in tar::Archive::new(&tar[..]).entries().unwrap() {
            let mut bytes = Vec::new();
            entry.unwrap().read_to_end(&mut bytes).unwrap();
            source.add(bytes);
        }
        layers.push(index);
        let digest = if is_uncompressed {
            diff_id
        } else {
            Digest::of(Algorithm::Sha256, &tar[1..])
        };
        named.push(json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest.to_string(), "size": tar.len()}));
        diff_ids.push(diff_id.to_string());
    }
    let config = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = serde_json::to_vec(&config).unwrap();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(Algorithm::Sha256, &config).to_string(), "size": config.len()},
        "layers": named,
        "annotations": {"kept": "yes"},
    });
    let image = Image {
        media_type: "application/vnd.oci.image.manifest.v1+json".into(),
        manifest: serde_json::to_vec(&manifest).unwrap(),
        config,
        layers: true,
        toc: ImageToc::build(&layers.iter().collect::<Vec<_>>()).unwrap(),
    };
    (image, source)
}

const NAMES: ImageLabels<'_> = ImageLabels {
    full: Some("registry.example/app:1"),
    short: Some("1"),
};

fn json_of(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn a_layout_has_the_layers_and_both_manifests() {
    let tars = [tar(1), tar(2), tar(1)];
    let (image, source) = image(&tars, false);
    let to = tempfile::tempdir().unwrap();
    let progress = Cell::new(0);
    let digest = layout(&image, &source, NAMES, to.path(), &|more| {
        progress.set(progress.get() + more)
    })
    .unwrap();
    let blob =
        |digest: &str| fs::read(to.path().join("blobs").join(digest.replace(':', "/"))).unwrap();
    let index = json_of(&fs::read(to.path().join("index.json")).unwrap());
    let found = &index["manifests"][0];
    assert_eq!(found["digest"], digest.to_string());
    assert_eq!(
        found["annotations"]["org.opencontainers.image.ref.name"],
        "1"
    );
    assert_eq!(
        found["annotations"][ORIGINAL_MANIFEST],
        image.digest().to_string()
    );
    assert_eq!(blob(&image.digest().to_string()), image.manifest);
    let manifest = json_of(&blob(&digest.to_string()));
    assert_eq!(manifest["annotations"]["kept"], "yes");
    assert_eq!(
        blob(manifest["config"]["digest"].as_str().unwrap()),
        image.config
    );
    for (layer, tar) in manifest["layers"].as_array().unwrap().iter().zip(&tars) {
        assert!(blob(layer["digest"].as_str().unwrap()) == *tar);
        assert_eq!(layer["size"], tar.len());
    }
    assert_eq!(
        progress.get(),
        tars.iter().map(|tar| tar.len() as u64).sum::<u64>()
    );
}

#[test]
fn an_image_with_uncompressed_layers_keeps_its_digest() {
    let (image, source) = image(&[tar(1), tar(2)], true);
    let to = tempfile::tempdir().unwrap();
    let digest = layout(&image, &source, NAMES, to.path(), &|_| {}).unwrap();
    assert_eq!(digest, image.digest());
}

#[test]
fn an_archive_is_a_reproducible_layout_with_dockers_manifest_json() {
    let tars = [tar(1), tar(2), tar(1)];
    let (image, source) = image(&tars, false);
    let mut bytes = Vec::new();
    archive(&image, &source, NAMES, &mut bytes, &|_| {}).unwrap();
    let mut again = Vec::new();
    archive(&image, &source, NAMES, &mut again, &|_| {}).unwrap();
    assert!(bytes == again);
    let to = tempfile::tempdir().unwrap();
    tar::Archive::new(&bytes[..]).unpack(to.path()).unwrap();
    let list = json_of(&fs::read(to.path().join("manifest.json")).unwrap());
    assert_eq!(list[0]["RepoTags"], json!(["registry.example/app:1"]));
    assert_eq!(
        fs::read(to.path().join(list[0]["Config"].as_str().unwrap())).unwrap(),
        image.config
    );
    for (layer, tar) in list[0]["Layers"].as_array().unwrap().iter().zip(&tars) {
        assert!(fs::read(to.path().join(layer.as_str().unwrap())).unwrap() == *tar);
    }
    assert!(to.path().join("index.json").exists() && to.path().join("oci-layout").exists());
}

#[test]
fn a_layout_with_a_wrong_layer_gets_no_index() {
    let (mut image, source) = image(&[tar(1)], false);
    let to = tempfile::tempdir().unwrap();
    let (other, _) = self::image(&[tar(2)], false);
    image.toc = other.toc;
    let error = layout(&image, &source, NAMES, to.path(), &|_| {}).unwrap_err();
    assert!(
        matches!(error, Error::Missing(_) | Error::File { .. }),
        "{error}"
    );
    assert!(!to.path().join("index.json").exists());
    image.layers = false;
    assert!(matches!(
        layout(&image, &source, NAMES, to.path(), &|_| {}),
        Err(Error::Missing(_))
    ));
}

/// Tests an export into a folder that a killed export has left. The states, in the order of the
/// writes, are: a temporary marker file, a marker file, a temporary blob.
#[test]
fn an_export_runs_again_after_a_kill_at_any_write() {
    let (image, source) = image(&[tar(1)], false);
    let to = tempfile::tempdir().unwrap();
    let path = |name: &str| to.path().join(name);
    fs::write(path("oci-layout.partial"), "{\"image").unwrap();
    layout(&image, &source, NAMES, to.path(), &|_| {}).unwrap();
    fs::remove_file(path("index.json")).unwrap();
    fs::remove_dir_all(path("blobs")).unwrap();
    layout(&image, &source, NAMES, to.path(), &|_| {}).unwrap();
    fs::remove_file(path("index.json")).unwrap();
    for blob in fs::read_dir(path("blobs/sha256")).unwrap() {
        let blob = blob.unwrap().path();
        fs::rename(&blob, blob.with_extension("partial")).unwrap();
    }
    layout(&image, &source, NAMES, to.path(), &|_| {}).unwrap();
    assert!(path("index.json").exists());
}

#[test]
fn a_folder_with_other_files_is_refused_unchanged() {
    let (image, source) = image(&[tar(1)], false);
    let to = tempfile::tempdir().unwrap();
    fs::write(to.path().join("thesis.tex"), "").unwrap();
    assert!(layout(&image, &source, NAMES, to.path(), &|_| {}).is_err());
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
}
