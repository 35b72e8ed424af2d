//! Tests of the image generators: correct digests and descriptors, deterministic results, hostile
//! documents, and trees that match their tars.

use std::io::Read;

use pierhead_oci::{Algorithm, Body, Manifest};

use super::hostile::Hostile;
use super::*;

#[test]
fn the_same_seed_gives_the_same_image() {
    let families: [fn(u64) -> Image; 6] = [
        |seed| Image::random(seed, &[10, 2000]),
        |seed| Image::unpackable(seed, 3),
        |seed| Image::docker(seed, 3),
        |seed| Image::multi_arch(seed, &["amd64", "arm64"]),
        |seed| Image::docker_multi_arch(seed, &["amd64", "arm64"]),
        |seed| {
            Image::artifact(
                seed,
                "application/vnd.example",
                Image::random(1, &[5]).root_document(),
            )
        },
    ];
    for family in families {
        assert_eq!(
            family(1).digests().collect::<Vec<_>>(),
            family(1).digests().collect::<Vec<_>>()
        );
        assert_ne!(family(1).root, family(2).root);
    }
}

#[test]
fn every_descriptor_has_its_blob() {
    let subject = Image::random(1, &[5]);
    let families = [
        Image::random(3, &[10, 0]),
        Image::unpackable(3, 3),
        Image::docker(3, 2),
        Image::multi_arch(3, &["amd64", "arm64"]),
        Image::docker_multi_arch(3, &["amd64", "arm64"]),
        Image::artifact(3, "application/vnd.example", subject.root_document()),
    ];
    for image in families {
        let mut sizes: Vec<(Digest, usize)> = image
            .blobs
            .iter()
            .map(|blob| (blob.digest, blob.bytes.len()))
            .collect();
        sizes.extend(
            image
                .documents
                .iter()
                .map(|document| (document.digest, document.bytes.len())),
        );
        let mut referred = 0;
        for document in &image.documents {
            assert_eq!(
                Digest::of(Algorithm::Sha256, &document.bytes),
                document.digest
            );
            let parsed = Manifest::parse(document.bytes.clone(), Some(&document.media_type))
                .expect("a manifest");
            for child in parsed.children() {
                let size = usize::try_from(child.size).expect("a small size");
                assert!(sizes.contains(&(child.digest, size)), "{child:?}");
                referred += 1;
            }
        }
        assert!(referred >= image.blobs.len());
        assert!(sizes.contains(&(image.root, image.root_document().bytes.len())));
    }
}

#[test]
fn an_index_names_its_platforms_and_attestations() {
    let image = Image::multi_arch(5, &["amd64", "arm64"]);
    let root = image.root_document();
    let parsed = Manifest::parse(root.bytes.clone(), Some(&root.media_type)).expect("an index");
    let Body::Index { manifests, .. } = parsed.body else {
        panic!("no index")
    };
    let architectures: Vec<_> = manifests
        .iter()
        .filter_map(|entry| Some(entry.platform.as_ref()?.architecture.clone()))
        .collect();
    assert_eq!(architectures, ["amd64", "arm64", "unknown", "unknown"]);
}

#[test]
fn layers_unpack_to_their_diff_ids() {
    let image = Image::unpackable(9, 2);
    let config: Value = serde_json::from_slice(&image.blobs[0].bytes).expect("JSON");
    for (nth, blob) in image.blobs[1..].iter().enumerate() {
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&blob.bytes[..])
            .read_to_end(&mut tar)
            .expect("gzip");
        assert_eq!(
            config["rootfs"]["diff_ids"][nth],
            digest_of(&tar).to_string()
        );
        let mut archive = tar::Archive::new(&tar[..]);
        let paths: Vec<_> = archive
            .entries()
            .expect("a tar")
            .map(|entry| {
                entry
                    .expect("an entry")
                    .path()
                    .expect("a path")
                    .into_owned()
            })
            .collect();
        assert!(
            paths.contains(&format!("layer-{nth}/file-3").into()),
            "{paths:?}"
        );
        assert_eq!(paths.contains(&"layer-0/.wh.file-0".into()), nth == 1);
    }
}

#[test]
fn a_random_file_has_its_size_and_digest() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let digest = write_random(file.path(), 4, 300_001).expect("written");
    let bytes = std::fs::read(file.path()).expect("read");
    assert_eq!((bytes.len(), digest_of(&bytes)), (300_001, digest));
}

/// Tests the manifest parser with hostile documents. The parser must refuse malformed documents,
/// and may parse or refuse well-formed documents. In no case may it panic, hang or overflow the
/// stack.
#[test]
fn malformed_documents_are_refused() {
    for Hostile {
        tries,
        document,
        malformed,
    } in hostile::documents()
    {
        let parsed = Manifest::parse(document.bytes.clone(), Some(&document.media_type));
        assert!(parsed.is_err() || !malformed, "{tries}: {parsed:.200?}");
    }
    let (first, (claimed, second)) = hostile::cycle();
    assert!(
        first
            .bytes
            .windows(71)
            .any(|window| window == claimed.to_string().as_bytes())
    );
    assert!(
        second
            .bytes
            .windows(71)
            .any(|window| window == first.digest.to_string().as_bytes())
    );
    assert_ne!(second.digest, claimed);
    assert_eq!(hostile::nested_indexes(30).len(), 31);
    for name in hostile::NAMES {
        assert!(name.parse::<pierhead_oci::Repository>().is_err(), "{name}");
    }
}

/// Tests that the expected tree of an image with one layer equals the entries in the tar of this
/// layer.
#[test]
fn a_random_tree_equals_the_tar_of_its_layer() {
    use std::os::unix::ffi::OsStrExt as _;
    for seed in 0..20 {
        let options = TreeOptions {
            layers: 1,
            ..TreeOptions::default()
        };
        let made = Image::tree(seed, &options);
        assert_eq!(made.tars, Image::tree(seed, &options).tars);
        let mut last = std::collections::BTreeMap::new();
        let mut archive = tar::Archive::new(&made.tars[0][..]);
        for entry in archive.entries().expect("a tar") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").into_owned();
            let path: std::path::PathBuf = path
                .components()
                .filter(|part| part.as_os_str() != ".")
                .collect();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).expect("data");
            last.insert(
                path.as_os_str().as_bytes().to_vec(),
                (entry.header().clone(), data),
            );
        }
        for entry in &made.tree {
            let (header, data) = &last[&entry.path];
            assert_eq!(header.mode().expect("a mode"), entry.mode);
            assert_eq!(header.uid().expect("an owner"), u64::from(entry.uid));
            assert_eq!(
                header.mtime().expect("a time"),
                entry.modified.seconds.unsigned_abs()
            );
            if let pierhead_toc::Kind::File { content, size } = entry.kind {
                assert!(header.entry_type().is_hard_link() || made.contents[&content] == *data);
                assert_eq!(made.contents[&content].len() as u64, size);
            }
        }
    }
}

#[test]
fn versions_of_a_random_tree_differ_only_in_contents() {
    let of = |version| {
        let options = TreeOptions {
            version,
            ..TreeOptions::default()
        };
        Image::tree(3, &options).tree
    };
    let (old, new) = (of(0), of(1));
    assert_eq!(old.len(), new.len());
    let changed = old.iter().zip(&new).filter(|(old, new)| old != new);
    let changed = changed.inspect(|(old, new)| {
        assert_eq!(
            (&old.path, old.mode, old.modified),
            (&new.path, new.mode, new.modified)
        );
    });
    let changed = changed.count();
    assert!(
        changed > 3 && changed * 2 < old.len(),
        "{changed} of {}",
        old.len()
    );
}
