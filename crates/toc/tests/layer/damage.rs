//! Tests of layer indexes that were damaged after they were written, of malformed skeletons (tars
//! without file contents) from untrusted senders, and of the number of bytes that a read of one
//! file takes.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing, Request};
use pierhead_toc::{Blob, Error, FileDigest, Kind, Source};

use crate::making::{Counted, Packing, Tar, indexed, random};

#[test]
fn a_read_begins_at_the_checkpoint_before_it() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut tar = Tar::new();
    tar.file("first", &random(&mut rng, 30_000_000));
    tar.file("last", b"the last one");
    let tar = tar.finish();
    let packings = [
        Packing::Plain,
        Packing::Gzip,
        Packing::GzipStored,
        Packing::GzipMembers,
        Packing::ZstdFrames,
    ];
    for packing in packings {
        let blob = packing.pack(&tar);
        let index = indexed(&blob, &tar).unwrap();
        let size = blob.size();
        let blob = Arc::new(Counted::new(MemoryBlob(blob.0.clone())));
        let reader = index.reader(blob.clone());
        let mut bytes = [0; 12];
        reader
            .read_at(&FileDigest::of(b"the last one"), 0, &mut bytes)
            .unwrap();
        assert_eq!(&bytes, b"the last one");
        let read = blob.bytes.load(Ordering::Relaxed);
        assert!(read < size / 3, "{packing:?}: {read} of {size}");
        // A read that continues an earlier read does not decode bytes again. So 20 adjacent reads
        // take a bounded number of bytes of the blob.
        let (first, len) = index.files().next().unwrap().unwrap();
        for step in 0..20 {
            let mut part = [0; 10_000];
            reader
                .read_at(&first, 9_000_000 + step * 10_000, &mut part)
                .unwrap();
        }
        assert_eq!(len, 30_000_000);
        let read = blob.bytes.load(Ordering::Relaxed);
        assert!(read < 2 * size / 3, "{packing:?}: {read} of {size}");
    }
}

#[test]
fn chunks_lie_one_behind_the_other_and_are_the_same_in_another_file() {
    let mut rng = fastrand::Rng::with_seed(3);
    let old = random(&mut rng, 3_000_000);
    let mut new = old.clone();
    new.splice(1_000_000..1_000_000, *b"a few bytes more");
    let mut tar = Tar::new();
    tar.file("old", &old);
    tar.file("new", &new);
    tar.file("small", &old[..1000]);
    let tar = tar.finish();
    let index = indexed(&Packing::Gzip.pack(&tar), &tar).unwrap();
    let chunks = |bytes: &[u8]| {
        let chunks = index.chunks(&FileDigest::of(bytes)).unwrap();
        let mut at = 0;
        for chunk in &chunks {
            assert_eq!(chunk.offset, at as u64);
            let end = at + chunk.len as usize;
            assert_eq!(chunk.content, FileDigest::of(&bytes[at..end]));
            at = end;
        }
        assert!(chunks.is_empty() || at == bytes.len());
        chunks
    };
    let (old_chunks, new_chunks) = (chunks(&old), chunks(&new));
    assert!(old_chunks.len() > 15, "{}", old_chunks.len());
    let same = |chunk: &&layer::Chunk| old_chunks.iter().any(|old| old.content == chunk.content);
    assert!(new_chunks.iter().filter(same).count() + 3 >= new_chunks.len());
    assert!(chunks(&old[..1000]).is_empty());
    assert!(
        index
            .chunks(&FileDigest::of(b"not there"))
            .unwrap()
            .is_empty()
    );
}

/// Reads all data of an index. Returns the data as bytes, or the first error.
fn told(index: &LayerIndex, blob: &Arc<MemoryBlob>) -> Result<Vec<u8>, Error> {
    let mut all = Vec::new();
    let reader = index.reader(blob.clone());
    let io = |_| Error::Missing("a content".to_owned());
    for entry in index.entries() {
        let entry = entry?;
        all.extend_from_slice(&entry.path);
        if let Kind::File { content, size } = entry.kind {
            let mut bytes = vec![0; usize::try_from(size).unwrap()];
            reader.read_at(&content, 0, &mut bytes).map_err(io)?;
            all.extend(bytes);
            for chunk in index.chunks(&content)? {
                all.extend_from_slice(chunk.content.as_bytes());
            }
        }
    }
    let (skeleton, size) = index.skeleton();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    reader.read_at(&skeleton, 0, &mut bytes).map_err(io)?;
    all.extend(bytes);
    Ok(all)
}

#[test]
fn damage_anywhere_is_told_not_served() {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut tar = Tar::new();
    for number in 0..20 {
        tar.file(&format!("{number}"), &random(&mut rng, 300 * number));
    }
    tar.file("large", &random(&mut rng, 400_000));
    let tar = tar.finish();
    let blob = Packing::Gzip.pack(&tar);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let diff_id = Digest::of(Algorithm::Sha256, &tar);
    let request = Request {
        media_type: "application/vnd.docker.image.rootfs.diff.tar.gzip",
        diff_id: &diff_id,
        limits: Limits::default(),
    };
    let index = layer::index(&*blob, &request, &mut NoPacing, &path).unwrap();
    let right = told(&index, &blob).unwrap();
    let bytes = fs::read(&path).unwrap();
    for at in (0..bytes.len())
        .step_by(7)
        .chain(bytes.len() - 32..bytes.len())
    {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        fs::write(&path, &damaged).unwrap();
        let outcome = LayerIndex::open(&path).and_then(|index| told(&index, &blob));
        assert!(outcome.is_err() || outcome.unwrap() == right, "at {at}");
    }
    for len in (0..bytes.len()).step_by(11) {
        fs::write(&path, &bytes[..len]).unwrap();
        assert!(LayerIndex::open(&path).is_err(), "{len}");
    }
}

/// A source of file contents that has every content, and whose bytes are all zeros.
struct Zeros;

impl Source for Zeros {
    fn size(&self, _content: &FileDigest) -> io::Result<Option<u64>> {
        Ok(Some(10))
    }

    fn read_at(&self, _content: &FileDigest, _offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }
}

#[test]
fn a_hostile_skeleton_is_refused() {
    let rebuilt = |mut skeleton: &[u8], files: usize| {
        let files = vec![(FileDigest::of(b""), 10); files];
        let mut out = Vec::new();
        let mut files = files.into_iter().map(Ok);
        layer::rebuild(&mut skeleton, &mut files, &Zeros, 4096, &mut out).map(|_| out.len())
    };
    assert_eq!(rebuilt(&[1, 5, 10, 0], 1).unwrap(), 512);
    assert_eq!(rebuilt(&[1, 6, 10, 4, 100, 3, 1, 9, 0], 1).unwrap(), 111);
    assert_eq!(rebuilt(&[1, 7, 10, 1, 2, 3, 0], 1).unwrap(), 512);
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let with = |head: &[u8], tail: &[u8]| [&[1], head, &huge, tail].concat();
    for (skeleton, files) in [
        (vec![], 0),
        (vec![2, 0], 0),
        (vec![1], 0),
        (vec![1, 0, 0], 0),
        (vec![1, 9, 0], 0),
        (vec![1, 5, 10, 0], 0),
        (vec![1, 0], 1),
        (vec![1, 5, 11, 0], 1),
        (vec![1, 1, 1, 0x81, 4, 1, 7, 0], 0),
        (vec![1, 7, 10, 1, 8, 3, 0], 1),
        (
            vec![
                1, 4, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2, 0,
            ],
            0,
        ),
        (with(&[4], &[0]), 0),
        (with(&[3], &[0]), 0),
        (with(&[1], &[0]), 0),
        (with(&[1, 1], &[1, 7, 0]), 0),
        (with(&[7, 10], &[0]), 1),
        (with(&[7, 10, 1], &[1, 0]), 1),
        (with(&[7, 10, 1, 1], &[0]), 1),
    ] {
        let outcome = rebuilt(&skeleton, files);
        assert!(
            matches!(outcome, Err(Error::Malformed { .. })),
            "{skeleton:?}: {outcome:?}"
        );
    }
}

/// A [`Pace`] that indexes the same layer into the same file once, during its first pause.
struct Twin<'a>(&'a MemoryBlob, &'a Request<'a>, &'a std::path::Path, bool);

impl layer::Pace for Twin<'_> {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        if !std::mem::replace(&mut self.3, true) {
            layer::index(self.0, self.1, &mut NoPacing, self.2)?;
        }
        Ok(())
    }
}

#[test]
fn two_that_write_one_index_do_not_harm_each_other() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut tar = Tar::new();
    tar.file("a", &random(&mut rng, 3_000_000));
    let tar = tar.finish();
    let blob = Packing::Gzip.pack(&tar);
    let diff_id = Digest::of(Algorithm::Sha256, &tar);
    let request = Request {
        media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
        diff_id: &diff_id,
        limits: Limits::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("index");
    layer::index(
        &*blob,
        &request,
        &mut Twin(&blob, &request, &out, false),
        &out,
    )
    .unwrap();
    let index = LayerIndex::open(&out).unwrap();
    assert_eq!(index.entries().map(Result::unwrap).count(), 1);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_content_is_read_right_after_another_one_failed() {
    let mut tar = Tar::new();
    // Two sparse files with one stored byte at every 700th or 1000th position.
    let contents = [(2, 700), (6000, 1000)].map(|(pieces, apart): (usize, usize)| {
        let pairs: Vec<_> = (0..pieces)
            .map(|nth| format!("{},1", nth * apart))
            .collect();
        let size = (pieces * apart).to_string();
        tar.pax(&[
            ("GNU.sparse.map", pairs.join(",").as_bytes()),
            ("GNU.sparse.size", size.as_bytes()),
        ]);
        tar.file(&size, &vec![b'x'; pieces]);
        let mut content = vec![0; pieces * apart];
        let filled = content.iter_mut().step_by(apart);
        filled.for_each(|byte| *byte = b'x');
        content
    });
    let tar = tar.finish();
    let blob = Packing::Plain.pack(&tar);
    let diff_id = Digest::of(Algorithm::Sha256, &tar);
    let request = Request {
        media_type: "application/vnd.oci.image.layer.v1.tar",
        diff_id: &diff_id,
        limits: Limits::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("index");
    layer::index(&*blob, &request, &mut NoPacing, &out).unwrap();
    let sound = fs::read(&out).unwrap();
    let [few, many] = contents;
    let mut failed = 0;
    for at in (0..sound.len()).step_by(200) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1;
        fs::write(&out, damaged).unwrap();
        let Ok(index) = LayerIndex::open(&out) else {
            continue;
        };
        let reader = index.reader(blob.clone());
        let mut bytes = vec![1; few.len()];
        if reader
            .read_at(&FileDigest::of(&few), 0, &mut bytes)
            .is_err()
        {
            continue;
        }
        let mut other = vec![1; 10_000];
        let content = FileDigest::of(&many);
        failed += usize::from(reader.read_at(&content, 0, &mut other).is_err());
        if reader.read_at(&FileDigest::of(&few), 0, &mut bytes).is_ok() {
            assert!(bytes == few, "{at}");
        }
    }
    assert!(failed > 0);
}
