//! Reads and writes the plan files of bundles. A plan file has all parts of one bundle: the header,
//! the location of each record in the packs, and the records that no pack has.
//!
//! From the same plan file, the server always sends the same bytes. `docs/formats/disk.md`
//! specifies the format.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pierhead_atomic_file::{AtomicFile, Options, open_regular};
use sha2::{Digest as _, Sha256};

use super::image::RequestBase;
use super::plan_gate;
use crate::Error;
use crate::pack::RecordLocation;
use pierhead_bundle::format::{BaseImage, Header, MAX_FRAMES, PRELUDE, Prelude, UsableContents};
use pierhead_bundle::{Coding, RECORD_HEAD, RecordHead};
use pierhead_toc::FileDigest;

const MAGIC: &[u8; 8] = b"PIERPLAN";
const VERSION: u32 = 2;
/// Length of the start of a plan file: magic, version, number of frames, length of the header's
/// body, prelude and checksum.
const START: usize = 8 + 4 + 4 + 8 + PRELUDE + 4;
/// Number of bytes that one frame takes in the table of record locations.
pub(super) const ENTRY: usize = 16;
/// Value in place of a pack number for a record that is in the plan file itself.
const IN_PLAN: u32 = u32::MAX;
/// Value in place of a pack number for a frame that has no record.
const NO_RECORD: u32 = u32::MAX - 1;
const FORMAT_NAME: &str = "plan";

/// Where the record of a frame is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanRecord {
    /// The frame has no record, since it only copies old contents.
    Absent,
    /// The record is in the plan file itself.
    InPlan {
        offset: u64,
        len: u32,
    },
    InPack(RecordLocation),
}

/// An open plan file. An open plan file takes about 16 bytes of memory per frame, and one file
/// descriptor.
pub(crate) struct PlanFile {
    pub(super) file: Arc<File>,
    pub(super) prelude: Prelude,
    pub(super) etag: String,
    /// Length in bytes of the header's body.
    pub(super) header: u64,
    /// Offset of the header's body in the plan file.
    pub(super) header_at: u64,
    pub(super) records: Vec<u8>,
    /// The base images whose contents the bundle uses.
    base_images: Vec<BaseImage>,
    /// Whether the plan file has its second name (a hard link).
    pub(super) is_linked: AtomicBool,
}

impl PlanFile {
    /// Opens a plan file. Reads and verifies the whole file except its records.
    ///
    /// # Errors
    /// `Missing` when the file does not exist, `Malformed` when the file is damaged, and `Io` for
    /// errors of the disk.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing(path.display().to_string()),
            io::ErrorKind::UnexpectedEof => wrong("it ends too early"),
            io::ErrorKind::InvalidData => wrong("another kind of file is in its place"),
            _ => Error::io(format!("read {}", path.display()), error),
        };
        plan_gate::pass(path);
        let mut file = open_regular(path).map_err(failed)?;
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
        // Only the heads of the records are hashed. This is enough, since each head contains the
        // digest of the record's payload.
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

    /// Whether a worker with these base images can apply the bundle, and whether the worker may
    /// pull all base images that the bundle uses.
    pub(super) fn suits(&self, base_images: &[RequestBase]) -> bool {
        self.base_images.iter().all(|base| match base.usable {
            UsableContents::None => true,
            usable => base_images.iter().any(|it| {
                let has_contents = it.has_layers || usable == UsableContents::Visible;
                it.manifest == base.manifest && it.is_usable && has_contents
            }),
        })
    }

    /// Returns the number of frames of the bundle.
    pub(super) fn frames(&self) -> u32 {
        u32::try_from(self.records.len() / ENTRY).unwrap_or(u32::MAX)
    }

    /// Returns the location of a frame's record, or `None` when there is no such frame.
    pub(super) fn record(&self, nth: u32) -> Option<PlanRecord> {
        let at = usize::try_from(nth).ok()?.checked_mul(ENTRY)?;
        let entry = self.records.get(at..at.checked_add(ENTRY)?)?;
        let pack = u32::from_le_bytes(*entry.first_chunk()?);
        let offset = u64::from_le_bytes(*entry[4..].first_chunk()?);
        let len = u32::from_le_bytes(*entry[12..].first_chunk()?);
        Some(match pack {
            NO_RECORD => PlanRecord::Absent,
            IN_PLAN => PlanRecord::InPlan {
                offset: self.header_at + self.header + offset,
                len,
            },
            pack => PlanRecord::InPack(RecordLocation { pack, offset, len }),
        })
    }

    /// Returns the head of a frame's record, for a record in a pack or in the plan file. If the
    /// frame has no record, the head is all zeros.
    pub(super) fn head(&self, nth: u32) -> Result<[u8; RECORD_HEAD], Error> {
        let mut head = [0; RECORD_HEAD];
        let at = (START + self.records.len()) as u64 + u64::from(nth) * RECORD_HEAD as u64;
        let read = self.file.read_exact_at(&mut head, at);
        read.map_err(|error| Error::io("read a plan", error))?;
        Ok(head)
    }

    /// Decodes the header of the bundle. The result has the whole header in memory.
    pub(crate) fn header(&self) -> Result<Header, Error> {
        let mut body = vec![0; self.prelude.body_len()];
        let read = self.file.read_exact_at(&mut body, self.header_at);
        read.map_err(|error| Error::io("read a plan", error))?;
        Ok(Header::decode(&self.prelude, &body)?)
    }

    /// Reads a record that is in the plan file.
    pub(crate) fn read(&self, offset: u64, len: u32) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let read = self.file.read_exact_at(&mut bytes, offset);
        read.map_err(|error| Error::io("read a plan", error))?;
        Ok(bytes)
    }
}

/// Returns the locations of those records of a plan that are in packs.
pub(super) fn pack_locations(plan: &PlanFile) -> impl Iterator<Item = RecordLocation> + '_ {
    (0..plan.frames()).filter_map(|nth| match plan.record(nth) {
        Some(PlanRecord::InPack(location)) => Some(location),
        _ => None,
    })
}

/// A plan file that a thread is writing. Dropping the draft before [`Self::finish`] deletes its
/// files.
pub(crate) struct Draft {
    path: PathBuf,
    records: Vec<u8>,
    heads: Vec<u8>,
    /// Temporary file with the records that no pack has. When the offset of these records is known,
    /// `finish` copies them into the plan file.
    own: AtomicFile<'static>,
    own_len: u64,
    all: u64,
}

impl Draft {
    /// Begins to write a plan file at `path`.
    pub(crate) fn begin(path: &Path) -> Result<Self, Error> {
        let mut aside = path.as_os_str().to_owned();
        // [`AtomicFile`] appends its own suffix to this name, so the next start of the server
        // deletes a file that a kill left.
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

    /// Adds a frame whose record is in a pack. `head` is the head of the record.
    pub(crate) fn packed_record(&mut self, location: RecordLocation, head: &[u8; RECORD_HEAD]) {
        self.entry(location.pack, location.offset, location.len, head);
    }

    /// Adds a frame whose record is the record of frame `nth` of another plan.
    pub(crate) fn copy_record(&mut self, plan: &PlanFile, nth: u32) -> Result<(), Error> {
        match plan.record(nth) {
            Some(PlanRecord::InPack(location)) => self.packed_record(location, &plan.head(nth)?),
            Some(PlanRecord::InPlan { offset, len }) => self.record(&plan.read(offset, len)?)?,
            _ => self.without_record(),
        }
        Ok(())
    }

    /// Adds a frame that has no record.
    pub(crate) fn without_record(&mut self) {
        self.entry(NO_RECORD, 0, 0, &[0; RECORD_HEAD]);
    }

    /// Adds a frame whose record is `bytes`: the head, then the payload.
    pub(crate) fn record(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let len = u32::try_from(bytes.len()).map_err(|_| wrong("a record that is too long"))?;
        let head = *bytes.first_chunk().ok_or_else(|| wrong("no record"))?;
        let written = self.own.file().write_all(bytes);
        written.map_err(|error| Error::io("write a plan", error))?;
        self.entry(IN_PLAN, self.own_len, len, &head);
        self.own_len += u64::from(len);
        Ok(())
    }

    /// Adds a frame with this coding and payload. Makes the head of the record.
    pub(crate) fn payload(&mut self, coding: Coding, payload: &[u8]) -> Result<(), Error> {
        let mut record = Vec::with_capacity(RECORD_HEAD + payload.len());
        record.extend_from_slice(&RecordHead::of(coding, payload)?.encode());
        record.extend_from_slice(payload);
        self.record(&record)
    }

    /// Returns the number of bytes in the temporary file. `finish` copies these bytes, and so
    /// writes them a second time.
    pub(crate) const fn temporary_bytes(&self) -> u64 {
        self.own_len
    }

    /// Returns the number of bytes of all records that were added so far.
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

    /// Writes the plan file, with this header of the bundle.
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

/// Makes the error for a damaged plan file.
fn wrong(why: &str) -> Error {
    Error::malformed(FORMAT_NAME, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_covers_the_bytes_of_records() {
        let folder = tempfile::tempdir().unwrap();
        // The body of the header starts with the number of base images, which is 0 here.
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
        assert_ne!(
            etag("a", b"one"),
            etag("b", b"two"),
            "the same length, other bytes"
        );
    }
}
