//! A plan as a file: the header as it leaves, where each record lies, and the records that no pack has.
//!
//! What was served once is served again byte by byte for as long as its file is kept. `docs/formats/disk.md` has it
//! byte by byte.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pierhead_atomic_file::{AtomicFile, Options};
use sha2::{Digest as _, Sha256};

use super::image::RequestBase;
use crate::pack::RecordLocation;
use pierhead_bundle::format::{BaseImage, Header, MAX_FRAMES, PRELUDE, Prelude, UsableContents};
use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};
use pierhead_toc::{Error, FileDigest};

const MAGIC: &[u8; 8] = b"PIERPLAN";
const VERSION: u32 = 2;
/// Magic, version, number of frames, bytes of the header's body, prelude, checksum.
const START: usize = 8 + 4 + 4 + 8 + PRELUDE + 4;
/// Of one frame.
pub(super) const ENTRY: usize = 16;
/// In place of the number of a pack.
const HERE: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX - 1;
const WHAT: &str = "plan";

/// Where the record of a frame lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanRecord {
    /// It has none.
    Absent,
    /// In the plan's own file.
    InPlan {
        offset: u64,
        len: u32,
    },
    InPack(RecordLocation),
}

/// A plan, opened: about 16 bytes a frame in memory, and an open file.
pub(crate) struct PlanFile {
    pub(super) file: Arc<File>,
    pub(super) prelude: Prelude,
    pub(super) etag: String,
    /// Bytes of the header's body, and where it lies.
    pub(super) header: u64,
    pub(super) header_at: u64,
    pub(super) records: Vec<u8>,
    /// What it counts upon.
    base_images: Vec<BaseImage>,
    /// Whether it has a name by its `ETag`.
    pub(super) is_linked: AtomicBool,
}

impl PlanFile {
    /// Opens a plan. Reads all of it but its records.
    ///
    /// # Errors
    /// `Missing`, `Malformed` when it is damaged, `Io`.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing(path.display().to_string()),
            io::ErrorKind::UnexpectedEof => wrong("it ends too early"),
            io::ErrorKind::IsADirectory => wrong("a folder is in its place"),
            _ => Error::io(format!("read {}", path.display()), error),
        };
        let mut file = File::open(path).map_err(failed)?;
        let mut start = [0; START];
        file.read_exact(&mut start).map_err(failed)?;
        let (bytes, sum) = start.split_at(START - 4);
        let u32_at = |at: usize| {
            bytes[at..]
                .first_chunk()
                .map_or(0, |it| u32::from_le_bytes(*it))
        };
        if &bytes[..8] != MAGIC || u32_at(8) != VERSION {
            return Err(wrong("another format"));
        }
        let frames = usize::try_from(u32_at(12)).unwrap_or(usize::MAX);
        let header = bytes[16..]
            .first_chunk()
            .map_or(0, |it| u64::from_le_bytes(*it));
        let prelude = bytes[24..].first_chunk::<PRELUDE>();
        let prelude = Prelude::decode(prelude.ok_or_else(|| wrong("no prelude"))?)?;
        if frames > MAX_FRAMES || usize::try_from(header) != Ok(prelude.body_len()) {
            return Err(wrong("lengths that cannot be"));
        }
        let mut records = vec![0; frames * ENTRY];
        file.read_exact(&mut records).map_err(failed)?;
        let mut heads = vec![0; frames * RECORD_HEAD];
        file.read_exact(&mut heads).map_err(failed)?;
        let found = crc32c::crc32c_append(crc32c::crc32c(bytes), &records);
        if crc32c::crc32c_append(found, &heads).to_le_bytes() != *sum {
            return Err(wrong("its checksum does not match"));
        }
        let header_at = (START + records.len() + heads.len()) as u64;
        let mut body = vec![0; prelude.body_len()];
        file.read_exact(&mut body).map_err(failed)?;
        if <[u8; 32]>::from(Sha256::digest(&body)) != prelude.digest {
            return Err(wrong("its header is damaged"));
        }
        let mut hasher = Sha256::new();
        hasher.update(prelude.digest);
        // Each has the digest of its payload.
        hasher.update(&heads);
        let etag = FileDigest::from_bytes(hasher.finalize().into()).hex();
        Ok(Self {
            file: Arc::new(file),
            prelude,
            etag: format!("\"{etag}\""),
            header,
            header_at,
            records,
            base_images: BaseImage::all_of(&body)?,
            is_linked: AtomicBool::new(false),
        })
    }

    /// Whether a worker that has these images can use it, and may have it.
    pub(super) fn is_for(&self, have: &[RequestBase]) -> bool {
        self.base_images.iter().all(|had| match had.usable {
            UsableContents::None => true,
            known => have.iter().any(|have| {
                let has_it = have.has_layers || known == UsableContents::Visible;
                have.manifest == had.manifest && have.is_known && has_it
            }),
        })
    }

    /// Number of frames.
    pub(super) fn frames(&self) -> u32 {
        u32::try_from(self.records.len() / ENTRY).unwrap_or(u32::MAX)
    }

    /// Where the record of a frame lies. `None` when there is no such frame.
    pub(super) fn record(&self, nth: u32) -> Option<PlanRecord> {
        let at = usize::try_from(nth).ok()?.checked_mul(ENTRY)?;
        let entry = self.records.get(at..at.checked_add(ENTRY)?)?;
        let pack = u32::from_le_bytes(*entry.first_chunk()?);
        let offset = u64::from_le_bytes(*entry[4..].first_chunk()?);
        let len = u32::from_le_bytes(*entry[12..].first_chunk()?);
        Some(match pack {
            NOWHERE => PlanRecord::Absent,
            HERE => PlanRecord::InPlan {
                offset: self.header_at + self.header + offset,
                len,
            },
            pack => PlanRecord::InPack(RecordLocation { pack, offset, len }),
        })
    }

    /// The head of a frame's record, wherever it lies; zeros where it has none.
    pub(super) fn head(&self, nth: u32) -> Result<[u8; RECORD_HEAD], Error> {
        let mut head = [0; RECORD_HEAD];
        let at = (START + self.records.len()) as u64 + u64::from(nth) * RECORD_HEAD as u64;
        let read = self.file.read_exact_at(&mut head, at);
        read.map_err(|error| Error::io("read a plan", error))?;
        Ok(head)
    }

    /// The header, decoded. Allocates all of it.
    pub(crate) fn header(&self) -> Result<Header, Error> {
        let mut body = vec![0; self.prelude.body_len()];
        let read = self.file.read_exact_at(&mut body, self.header_at);
        read.map_err(|error| Error::io("read a plan", error))?;
        Header::decode(&self.prelude, &body)
    }

    /// Bytes of a record of its own.
    pub(crate) fn read(&self, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| Error::io("read a plan", error))?;
        Ok(bytes)
    }
}

/// Where a plan has its frames in packs.
pub(super) fn packed(plan: &PlanFile) -> impl Iterator<Item = RecordLocation> + '_ {
    (0..plan.frames()).filter_map(|nth| match plan.record(nth) {
        Some(PlanRecord::InPack(place)) => Some(place),
        _ => None,
    })
}

/// A plan that is being made. Dropped before it is finished it leaves nothing.
pub(crate) struct Draft {
    path: PathBuf,
    records: Vec<u8>,
    heads: Vec<u8>,
    /// Records of its own, until it is known where they begin, and their file.
    own: AtomicFile<'static>,
    own_len: u64,
    all: u64,
}

impl Draft {
    /// Begins the plan that will lie at `path`.
    pub(crate) fn begin(path: &Path) -> Result<Self, Error> {
        let mut aside = path.as_os_str().to_owned();
        // As other files that are half written, it goes at the next start.
        aside.push(".records");
        let failed = |error| Error::io(format!("write {}", path.display()), error);
        let own = Options::new().create(Path::new(&aside)).map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            records: Vec::new(),
            heads: Vec::new(),
            own,
            own_len: 0,
            all: 0,
        })
    }

    /// The next frame has its record, of which this is the head, in a pack.
    pub(crate) fn packed(&mut self, place: RecordLocation, head: &[u8; RECORD_HEAD]) {
        self.entry(place.pack, place.offset, place.len, head);
    }

    /// The next frame has the record that this one of another plan has.
    pub(crate) fn same(&mut self, plan: &PlanFile, nth: u32) -> Result<(), Error> {
        match plan.record(nth) {
            Some(PlanRecord::InPack(place)) => self.packed(place, &plan.head(nth)?),
            Some(PlanRecord::InPlan { offset, len }) => self.record(&plan.read(offset, len)?)?,
            _ => self.nowhere(),
        }
        Ok(())
    }

    /// The next frame has no record.
    pub(crate) fn nowhere(&mut self) {
        self.entry(NOWHERE, 0, 0, &[0; RECORD_HEAD]);
    }

    /// The next frame has this record, head included.
    pub(crate) fn record(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let len = u32::try_from(bytes.len()).map_err(|_| wrong("a record that is too long"))?;
        let head = *bytes.first_chunk().ok_or_else(|| wrong("no record"))?;
        let written = self.own.file().write_all(bytes);
        written.map_err(|error| Error::io("write a plan", error))?;
        self.entry(HERE, self.own_len, len, &head);
        self.own_len += u64::from(len);
        Ok(())
    }

    /// The next frame has this payload.
    pub(crate) fn payload(&mut self, coding: Coding, payload: &[u8]) -> Result<(), Error> {
        let mut record = Vec::with_capacity(RECORD_HEAD + payload.len());
        record.extend_from_slice(&RecordHead::of(coding, payload)?.encode());
        record.extend_from_slice(payload);
        self.record(&record)
    }

    /// Bytes that were written already, and are written once more in the end.
    pub(crate) const fn aside(&self) -> u64 {
        self.own_len
    }

    /// Bytes of all records so far.
    pub(crate) const fn bytes(&self) -> u64 {
        self.all
    }

    fn entry(&mut self, pack: u32, offset: u64, len: u32, head: &[u8; RECORD_HEAD]) {
        self.heads.extend_from_slice(head);
        self.records.extend_from_slice(&pack.to_le_bytes());
        self.records.extend_from_slice(&offset.to_le_bytes());
        self.records.extend_from_slice(&len.to_le_bytes());
        self.all += u64::from(len);
    }

    /// Puts it in its place, with the header that the frames so far have.
    pub(crate) fn finish(self, prelude: &Prelude, body: &[u8]) -> Result<PlanFile, Error> {
        let mut start = Vec::with_capacity(START);
        start.extend_from_slice(MAGIC);
        start.extend_from_slice(&VERSION.to_le_bytes());
        let frames = u32::try_from(self.records.len() / ENTRY);
        let frames = frames.map_err(|_| wrong("too many frames"))?;
        start.extend_from_slice(&frames.to_le_bytes());
        start.extend_from_slice(&(body.len() as u64).to_le_bytes());
        start.extend_from_slice(&prelude.encode());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&start), &self.records);
        let sum = crc32c::crc32c_append(sum, &self.heads);
        start.extend_from_slice(&sum.to_le_bytes());
        let written = Options::new().write_with(&self.path, |file| {
            file.write_all(&start)?;
            file.write_all(&self.records)?;
            file.write_all(&self.heads)?;
            file.write_all(body)?;
            let mut own = self.own.file();
            own.seek(SeekFrom::Start(0))?;
            io::copy(&mut own, file).map(drop)
        });
        written.map_err(|error| Error::io(format!("write {}", self.path.display()), error))?;
        PlanFile::open(&self.path)
    }
}

fn wrong(why: &str) -> Error {
    Error::malformed(WHAT, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_covers_the_bytes_of_records() {
        let folder = tempfile::tempdir().unwrap();
        // It begins with the images that it counts upon: none.
        let body = vec![0; 100];
        let prelude = Prelude {
            continued: false,
            piece: false,
            layers: false,
            body: 100,
            first: 0,
            until: 1,
            digest: Sha256::digest(&body).into(),
        };
        let etag = |name: &str, payload: &[u8]| {
            let mut draft = Draft::begin(&folder.path().join(name)).unwrap();
            draft.payload(Coding::Stored, payload).unwrap();
            draft.finish(&prelude, &body).unwrap().etag
        };
        assert_eq!(etag("a", b"one"), etag("b", b"one"));
        assert_ne!(etag("a", b"one"), etag("b", b"two"), "as long, and others");
    }
}
