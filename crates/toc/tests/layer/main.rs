//! Integration tests of layer indexing. A layer is indexed. With the index, files are read from the
//! middle of the compressed layer (from checkpoints), the tar is rebuilt byte for byte, and the
//! ranges of the compressed layer that hold given contents are found (hot ranges). Submodules test
//! attributes, damaged and hostile layers, and random tars.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod attributes;
mod damage;
mod hostile;
mod making;
mod random;

use std::sync::Arc;

use pierhead_toc::layer::{self, LayerIndex, NoPacing};
use pierhead_toc::{Blob, FileDigest, Kind, Source};

use pierhead_testkit::images::{Image, TreeOptions};
use pierhead_testkit::source::MemoryBlob;

use making::{Packing, Tar, indexed, random};

/// Reads every file as a whole and in part, and rebuilds the tar.
fn check(tar: &[u8], blob: &Arc<MemoryBlob>, index: &LayerIndex) {
    let reader = index.reader(blob.clone());
    for file in index.files() {
        let (content, size) = file.unwrap();
        assert_eq!(reader.size(&content).unwrap(), Some(size));
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        reader.read_at(&content, 0, &mut bytes).unwrap();
        assert_eq!(FileDigest::of(&bytes), content);
        let middle = bytes.len() / 3;
        let mut part = vec![0; bytes.len() / 2];
        reader.read_at(&content, middle as u64, &mut part).unwrap();
        assert_eq!(part, bytes[middle..middle + part.len()]);
        assert!(reader.read_at(&content, size, &mut [0]).is_err());
    }
    let (content, size) = index.skeleton();
    let mut skeleton = vec![0; usize::try_from(size).unwrap()];
    reader.read_at(&content, 0, &mut skeleton).unwrap();
    assert_eq!(FileDigest::of(&skeleton), content);
    let mut again = Vec::new();
    let limit = tar.len() as u64;
    let files = &mut index.files();
    let digest = layer::rebuild(&mut &skeleton[..], files, &reader, limit, &mut again).unwrap();
    assert!(again == tar, "the rebuilt tar differs");
    assert_eq!(digest, index.diff_id());
    // A limit that is one byte too low must be an error.
    let short = layer::rebuild(
        &mut &skeleton[..],
        &mut index.files(),
        &reader,
        limit - 1,
        &mut Vec::new(),
    );
    assert!(short.is_err());
}

#[test]
fn layers_of_every_compression_are_read_and_rebuilt() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut tar = Tar::new();
    tar.directory("usr/");
    for number in 0..200 {
        let len = if number % 9 == 0 {
            0
        } else {
            rng.usize(1..20_000)
        };
        tar.file(&format!("usr/{number}"), &random(&mut rng, len));
    }
    tar.file("usr/large", &random(&mut rng, 9_000_000));
    tar.symlink("usr/link", "../large");
    tar.hard_link("usr/hard", "usr/7");
    let tar = tar.finish();
    for packing in Packing::ALL {
        let blob = packing.pack(&tar);
        let index = indexed(&blob, &tar).unwrap();
        check(&tar, &blob, &index);
        assert_eq!(index.entry_count(), 204);
        assert_eq!(index.entries().count(), 204);
    }
}

#[test]
fn entries_are_in_the_order_of_the_tar() {
    let mut tar = Tar::new();
    tar.directory("./b");
    tar.file("/a", b"x");
    tar.file("b/.wh.gone", b"");
    tar.file("b/.wh..wh..opq", b"");
    tar.file("a", b"y");
    let tar = tar.finish();
    let index = indexed(&Packing::Plain.pack(&tar), &tar).unwrap();
    let entries: Vec<_> = index
        .entries()
        .map(|entry| entry.unwrap())
        .map(|entry| (String::from_utf8(entry.path).unwrap(), entry.kind))
        .collect();
    let file = |bytes: &[u8]| Kind::File {
        content: FileDigest::of(bytes),
        size: bytes.len() as u64,
    };
    let expected = [
        ("b", Kind::Directory),
        ("a", file(b"x")),
        ("b/gone", Kind::Whiteout),
        ("b", Kind::Opaque),
        ("a", file(b"y")),
    ];
    assert_eq!(
        entries,
        expected.map(|(path, kind)| (path.to_owned(), kind))
    );
}

#[test]
fn random_images_are_read_and_rebuilt() {
    for seed in 0..6usize {
        let options = TreeOptions {
            large: seed % 2 == 1,
            ..TreeOptions::default()
        };
        let image = Image::tree(seed as u64, &options);
        for (number, tar) in image.tars.iter().enumerate() {
            let packing = Packing::ALL[(seed + number) % Packing::ALL.len()];
            let blob = packing.pack(tar);
            let index = indexed(&blob, tar).unwrap();
            check(tar, &blob, &index);
            for entry in index.entries() {
                if let Kind::File { content, size } = entry.unwrap().kind {
                    let known = image.contents.get(&content);
                    assert_eq!(known.map(Vec::len), Some(usize::try_from(size).unwrap()));
                }
            }
        }
    }
}

/// A blob of which only these ranges can be read.
struct Only(Arc<MemoryBlob>, Vec<std::ops::Range<u64>>);

impl Blob for Only {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        // Maximum read-ahead of a reader, in bytes.
        const AHEAD: u64 = 64 << 10;
        let end = offset + buf.len() as u64;
        let mut ranges = self.1.iter();
        assert!(
            ranges.any(|range| range.contains(&offset) && end <= range.end + AHEAD),
            "{offset}..{end} is not in {:?}",
            self.1
        );
        self.0.read_at(offset, buf)
    }
}

#[test]
fn hot_ranges_are_sufficient_to_read_the_contents() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut tar = Tar::new();
    let mut contents = Vec::new();
    for number in 0..30 {
        let len = rng.usize(1..600_000);
        let content = random(&mut rng, len);
        contents.push(FileDigest::of(&content));
        tar.file(&format!("usr/{number}"), &content);
    }
    let tar = tar.finish();
    for packing in Packing::ALL {
        let blob = packing.pack(&tar);
        let index = indexed(&blob, &tar).unwrap();
        // The contents to read: two adjacent contents, a distant content, and a content that the
        // layer lacks.
        let hot = [
            contents[25],
            contents[11],
            contents[10],
            FileDigest::of(b"elsewhere"),
        ];
        let touched =
            |hot: &[FileDigest]| index.hot_ranges(blob.clone(), hot, &mut NoPacing).unwrap();
        let ranges = touched(&hot);
        assert!(
            ranges.is_sorted_by(|a, b| a.end < b.start),
            "{packing:?}: {ranges:?}"
        );
        let bytes: u64 = ranges.iter().map(|it| it.end - it.start).sum();
        assert!(bytes < index.blob_size(), "{packing:?}: the whole blob");
        let only = Arc::new(Only(blob.clone(), ranges));
        let mut orders = [hot.to_vec(), hot.to_vec()];
        orders[1].reverse();
        for order in orders {
            let reader = index.reader(only.clone());
            for content in &order[..] {
                if let Some(size) = reader.size(content).unwrap() {
                    let mut bytes = vec![0; usize::try_from(size).unwrap()];
                    reader.read_at(content, 0, &mut bytes).unwrap();
                    assert_eq!(FileDigest::of(&bytes), *content, "{packing:?}");
                }
            }
        }
        assert_eq!(touched(&[]), []);
    }
}
