//! Properties that fuzz targets check for the indexing of layers, and for skeletons (tars without
//! file contents).

use std::io;
use std::path::Path;
use std::sync::Arc;

use pierhead_oci::{Algorithm, Digest};

use crate::layer::{self, LayerIndex, Limits, NoPacing, Request};
use crate::{Blob, Error, FileDigest, Kind, Source};

/// Maximum uncompressed size of an input, in bytes.
const LIMIT: u64 = 4 << 20;

struct Memory(Vec<u8>);

impl Blob for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok();
        let from = from.and_then(|from| self.0.get(from..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Indexes a blob. The checked property: the blob is refused, or all entries are valid, every
/// content has its digest, and rebuilding gives the same tar. Writes the index into `folder`.
pub fn layer(bytes: &[u8], folder: &Path) {
    let blob = Arc::new(Memory(bytes.to_vec()));
    let out = folder.join("index");
    let index = |diff_id: &Digest| -> Result<LayerIndex, Error> {
        let request = Request {
            media_type: "application/vnd.oci.image.layer.v1.tar",
            diff_id,
            limits: Limits {
                max_size: LIMIT,
                max_ratio: 10_000,
                max_entries: 10_000,
                max_window: 1 << 20,
            },
        };
        layer::index(&*blob, &request, &mut NoPacing, &out)
    };
    // The diff ID of a fuzzer's input is unknown, but the error of a first attempt contains it.
    let Err(Error::Digest { found, .. }) = index(&Digest::of(Algorithm::Sha256, b"nothing")) else {
        return;
    };
    assert!(!out.exists());
    let diff_id: Digest = found.parse().expect("a digest");
    let index = index(&diff_id).expect("it was good but for its digest");
    for entry in index.entries() {
        let entry = entry.expect("it was written just now");
        let sound = |part: &[u8]| {
            !matches!(part, b"" | b"." | b"..") && part.len() <= 255 && !part.contains(&0)
        };
        let clean = |path: &[u8]| path.len() <= 4096 && path.split(|byte| *byte == b'/').all(sound);
        assert!(entry.path.is_empty() || clean(&entry.path));
        assert!(entry.mode <= 0o7777 && entry.modified.nanos < 1_000_000_000);
        assert!(entry.xattrs.is_sorted_by(|a, b| a.0 < b.0));
        match &entry.kind {
            Kind::HardLink { target } => assert!(clean(target)),
            Kind::Symlink { target } => assert!(!target.is_empty() && !target.contains(&0)),
            _ => {}
        }
    }
    let reader = index.reader(blob.clone());
    let mut files = 0;
    for file in index.files() {
        let (content, size) = file.expect("it was written just now");
        let mut bytes = vec![0; usize::try_from(size).expect("a small file")];
        reader
            .read_at(&content, 0, &mut bytes)
            .expect("it is there");
        assert_eq!(FileDigest::of(&bytes), content);
        files += 1;
    }
    assert_eq!(files, index.file_count());
    let (content, size) = index.skeleton();
    let mut skeleton = vec![0; usize::try_from(size).expect("a small skeleton")];
    reader
        .read_at(&content, 0, &mut skeleton)
        .expect("it is there");
    assert_eq!(FileDigest::of(&skeleton), content);
    let mut tar = Vec::new();
    let skeleton = &mut &skeleton[..];
    let made = layer::rebuild(
        skeleton,
        &mut index.files(),
        &reader,
        index.size(),
        &mut tar,
    );
    assert_eq!(made.expect("all is there"), diff_id);
    assert_eq!(tar.len() as u64, index.size());
}

/// A source of file contents that has every content, and whose bytes are all zeros.
struct Zeros;

impl Source for Zeros {
    fn size(&self, _content: &FileDigest) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn read_at(&self, _content: &FileDigest, _offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        Ok(())
    }
}

/// Rebuilds a tar from an untrusted skeleton. The checked property: the skeleton is refused, or the
/// tar is within the limit and has the returned digest.
pub fn skeleton(bytes: &[u8]) {
    let rebuild = |files: &mut dyn Iterator<Item = Result<(FileDigest, u64), Error>>| {
        let mut tar = Vec::new();
        let made = layer::rebuild(&mut &bytes[..], files, &Zeros, LIMIT, &mut tar);
        assert!(tar.len() as u64 <= LIMIT);
        made.map(|digest| (digest, tar))
    };
    let file = || Ok((FileDigest::of(b""), 10));
    // Passes an endless list of files, and counts how many files the skeleton needs.
    let mut asked = 0usize;
    let endless = rebuild(&mut std::iter::from_fn(|| {
        asked += 1;
        Some(file())
    }));
    assert!(endless.is_err());
    let files = asked.saturating_sub(1);
    if let Ok((digest, tar)) = rebuild(&mut std::iter::repeat_with(file).take(files)) {
        assert_eq!(digest, Digest::of(Algorithm::Sha256, &tar));
    }
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn layers() {
        each("layer", |input| {
            let folder = tempfile::tempdir().expect("a folder");
            super::layer(input, folder.path());
        });
    }

    #[test]
    fn skeletons() {
        each("skeleton", super::skeleton);
    }
}
