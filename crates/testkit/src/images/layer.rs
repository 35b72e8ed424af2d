//! Generates the gzip layers of test images, which are compressed tars of files.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use pierhead_oci::Digest;
use tar::{EntryType, Header};

use super::{Blob, digest_of, random_bytes};

/// A layer, with its diff ID (the digest of the uncompressed bytes).
pub(super) struct Layer {
    pub(super) blob: Blob,
    pub(super) diff_id: Digest,
}

impl Layer {
    /// Creates a layer of compressible and incompressible files of up to 8 KiB in folders, with a
    /// symbolic link. Every layer except the first also has a whiteout.
    pub(super) fn new(media_type: &str, seed: u64, nth: u64, files: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ nth.rotate_left(32));
        let mut tar = tar::Builder::new(Vec::new());
        let mut put = |kind, path: &str, content: &[u8]| {
            let mut header = Header::new_ustar();
            header.set_entry_type(kind);
            header.set_mode(if kind == EntryType::Directory {
                0o755
            } else {
                0o644
            });
            header.set_mtime(0);
            header.set_size(content.len() as u64);
            let done = if kind == EntryType::Symlink {
                header.set_size(0);
                tar.append_link(
                    &mut header,
                    path,
                    std::str::from_utf8(content).unwrap_or("target"),
                )
            } else {
                tar.append_data(&mut header, path, content)
            };
            done.expect("a tar entry in memory");
        };
        let folder = format!("layer-{nth}/");
        put(EntryType::Directory, &folder, b"");
        for file in 0..files {
            let size = random.usize(0..8192);
            let content = if file % 2 == 0 {
                random_bytes(random.u64(..), size).to_vec()
            } else {
                vec![b'a'; size]
            };
            put(
                EntryType::Regular,
                &format!("{folder}file-{file}"),
                &content,
            );
        }
        put(EntryType::Symlink, &format!("{folder}link"), b"file-0");
        if nth > 0 {
            put(
                EntryType::Regular,
                &format!("layer-{}/.wh.file-0", nth - 1),
                b"",
            );
        }
        let tar = tar.into_inner().expect("a write to memory");
        Self {
            blob: Blob::new(media_type, gzip(&tar)),
            diff_id: digest_of(&tar),
        }
    }
}

/// Compresses bytes into one gzip member at the fastest level.
pub(super) fn gzip(tar: &[u8]) -> Vec<u8> {
    gzip_at(Compression::fast(), tar)
}

/// Compresses bytes into one gzip member at this level.
pub(super) fn gzip_at(level: Compression, tar: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), level);
    gzip.write_all(tar).expect("a write to memory");
    gzip.finish().expect("a write to memory")
}
