//! Helpers for the tests of layers: write tars, compress them to layers, and index them.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::layer::{self, LayerIndex, Limits, NoPacing, Request};
use pierhead_toc::{Blob, Error};

/// A blob that counts its reads and the bytes that were read.
pub(crate) struct Counted {
    blob: MemoryBlob,
    pub(crate) reads: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Counted {
    pub(crate) fn new(blob: MemoryBlob) -> Self {
        Self {
            blob,
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

impl Blob for Counted {
    fn size(&self) -> u64 {
        self.blob.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.blob.read_at(offset, buf)
    }
}

/// How a tar is compressed to a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    /// Gzip with stored (uncompressed) blocks, which start at byte boundaries.
    GzipStored,
    /// Gzip with one member for each 100 000 bytes.
    GzipMembers,
    Zstd,
    /// Zstd with one frame for each 5 000 000 bytes, and a skippable frame between them.
    ZstdFrames,
}

impl Packing {
    pub(crate) const ALL: [Self; 6] = [
        Self::Plain,
        Self::Gzip,
        Self::GzipStored,
        Self::GzipMembers,
        Self::Zstd,
        Self::ZstdFrames,
    ];

    pub(crate) fn pack(self, tar: &[u8]) -> Arc<MemoryBlob> {
        Arc::new(MemoryBlob(match self {
            Self::Plain => tar.to_vec(),
            Self::Gzip => gzip(tar, 6),
            Self::GzipStored => gzip(tar, 0),
            Self::GzipMembers => tar.chunks(100_000).flat_map(|part| gzip(part, 6)).collect(),
            Self::Zstd => zstd::bulk::compress(tar, 1).unwrap(),
            Self::ZstdFrames => tar
                .chunks(5_000_000)
                .flat_map(|part| {
                    let mut frame = vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
                    frame.extend(zstd::bulk::compress(part, 1).unwrap());
                    frame
                })
                .collect(),
        }))
    }
}

pub(crate) fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns random bytes that compress by about half, since some runs repeat earlier bytes.
pub(crate) fn random(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        if out.len() > 64 && rng.bool() {
            let back = rng.usize(1..out.len().min(30_000));
            let run = rng.usize(4..200);
            let from = out.len() - back;
            for at in 0..run {
                out.push(out[from + at % back]);
            }
        } else {
            out.extend((0..rng.usize(1..60)).map(|_| rng.u8(..)));
        }
    }
    out.truncate(len);
    out
}

/// Indexes a layer with the correct diff ID and the default limits.
pub(crate) fn indexed(blob: &MemoryBlob, tar: &[u8]) -> Result<LayerIndex, Error> {
    indexed_with(blob, tar, Limits::default())
}

pub(crate) fn indexed_with(
    blob: &MemoryBlob,
    tar: &[u8],
    limits: Limits,
) -> Result<LayerIndex, Error> {
    let diff_id = Digest::of(Algorithm::Sha256, tar);
    let request = Request {
        media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
        diff_id: &diff_id,
        limits,
    };
    let folder = tempfile::tempdir().unwrap();
    // The index stays readable after its folder was deleted, since its file is open.
    layer::index(blob, &request, &mut NoPacing, &folder.path().join("index"))
}

/// A tar, written header by header.
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn header(name: &str, flag: u8, size: u64) -> tar::Header {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_size(size);
        header.set_entry_type(tar::EntryType::new(flag));
        header.set_cksum();
        header
    }

    /// Appends a header, data, and zeros up to a whole block.
    pub(crate) fn raw(&mut self, header: &tar::Header, data: &[u8]) {
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    pub(crate) fn entry(&mut self, name: &str, flag: u8, data: &[u8]) {
        let header = Self::header(name, flag, data.len() as u64);
        self.raw(&header, data);
    }

    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, b'5', b"");
    }

    pub(crate) fn file(&mut self, name: &str, data: &[u8]) {
        self.entry(name, b'0', data);
    }

    pub(crate) fn symlink(&mut self, name: &str, target: &str) {
        self.link(name, b'2', target);
    }

    pub(crate) fn hard_link(&mut self, name: &str, target: &str) {
        self.link(name, b'1', target);
    }

    fn link(&mut self, name: &str, flag: u8, target: &str) {
        let mut header = Self::header(name, flag, 0);
        header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        self.raw(&header, b"");
    }

    /// Appends an extended header with these records.
    pub(crate) fn pax(&mut self, records: &[(&str, &[u8])]) {
        let mut data = Vec::new();
        for (key, value) in records {
            let body = key.len() + value.len() + 3;
            let mut len = body;
            while len != body + len.to_string().len() {
                len = body + len.to_string().len();
            }
            data.extend_from_slice(format!("{len} {key}=").as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.entry("pax", b'x', &data);
    }

    /// Appends the end mark, and returns the tar.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}
