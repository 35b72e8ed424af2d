//! The bytes of the log: its head, the heads of segments and of records. `docs/formats/pmem.md`
//! draws them.

use crate::Error;

/// Version of the layout.
const VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"PIERPMEM";
const SEGMENT_MAGIC: [u8; 8] = *b"PIERSEGM";
/// Bytes of each head: one cache line, so that one flush takes it.
pub(super) const LINE: u64 = 64;
/// Where the two copies of the log's head lie: in pages of their own, so that a bad page takes one.
pub(super) const HEADS: [u64; 2] = [0, 4096];
/// Bytes of the pages with the heads, of which no segment has any.
const HEAD_PAGES: u64 = 8192;
/// Longest key.
pub const MAX_KEY: usize = 72;
/// Longest meta.
pub const MAX_META: usize = 64 * 1024;
/// Smallest segment, and largest: a power of two between.
pub const SEGMENTS: (u64, u64) = (4096, 1 << 30);
/// Bytes of one part in the tail of a record.
pub(super) const PART: usize = 24;
/// Offset of the commit word in the head of a record.
pub(super) const COMMIT: u64 = 56;

/// Sequences and serials stay below: what counts on from one that was read cannot overflow.
const COUNTERS: u64 = 1 << 62;

/// One head.
pub(super) type Line = [u8; 64];

/// What the log's head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Chosen at random when the region was formatted: what an earlier log left there is not of
    /// this one.
    pub(super) id: u64,
    /// Bytes of the region.
    pub(super) size: u64,
    /// Bytes of a segment.
    pub(super) segment: u64,
}

/// What became of one copy of the log's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copy {
    /// As it was written.
    Good(Head),
    /// Written by another version.
    Version(u32),
    /// Nothing but zeros: never written.
    Blank,
    /// Anything else.
    Bad,
}

/// The whole of a value, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The record that makes a value visible: its last bytes, its key, meta, and where its parts
    /// lie.
    Last,
    /// Bytes of a value, which its last record names.
    Part,
}

/// What the head of a record says, but for its commit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// Of the segment as it was opened for this record.
    pub(super) sequence: u64,
    /// Of two records with one key the higher one is the newer.
    pub(super) serial: u64,
    /// Bytes right behind the head.
    pub(super) body: u32,
    /// Bytes of meta.
    pub(super) meta: u32,
    /// Parts in other records.
    pub(super) parts: u32,
    /// Bytes of key.
    pub(super) key: u8,
    /// What it is.
    pub(super) kind: Kind,
    /// CRC-32C of key, meta and parts.
    pub(super) tail_sum: u32,
}

/// Where a run of a value lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// From the region's start.
    pub(super) offset: u64,
    /// Bytes; never none.
    pub(super) len: u64,
    /// Of its segment.
    pub(super) sequence: u64,
}

impl Head {
    pub(super) fn encode(&self) -> Line {
        let mut line = [0; 64];
        line[..8].copy_from_slice(&MAGIC);
        line[8..12].copy_from_slice(&VERSION.to_le_bytes());
        line[16..24].copy_from_slice(&self.size.to_le_bytes());
        line[24..32].copy_from_slice(&self.segment.to_le_bytes());
        line[32..40].copy_from_slice(&self.id.to_le_bytes());
        seal(&mut line, 60, 0);
        line
    }

    /// Segments in the region.
    pub(super) fn segments(&self) -> u64 {
        self.size.saturating_sub(base(self.segment)) / self.segment
    }
}

/// Where segments of so many bytes begin: each at a multiple of its size, so that what the kernel
/// caches in one piece, aligned as well, never lies in two.
pub(super) const fn base(segment: u64) -> u64 {
    if segment > HEAD_PAGES {
        segment
    } else {
        HEAD_PAGES
    }
}

impl Copy {
    /// Reads one copy; judges nothing but the copy itself.
    pub(super) fn decode(line: &Line) -> Self {
        if line.iter().all(|byte| *byte == 0) {
            return Self::Blank;
        }
        if line[..8] != MAGIC || !sealed(line, 60, 0) {
            return Self::Bad;
        }
        let version = u32_at(line, 8);
        if version != VERSION {
            return Self::Version(version);
        }
        Self::Good(Head {
            size: u64_at(line, 16),
            segment: u64_at(line, 24),
            id: u64_at(line, 32),
        })
    }
}

/// The head of a segment: of which log, opened as the how-manieth, and which segment it is.
pub(super) fn encode_segment(id: u64, sequence: u64, index: u32) -> Line {
    let mut line = [0; 64];
    line[..8].copy_from_slice(&SEGMENT_MAGIC);
    line[8..16].copy_from_slice(&id.to_le_bytes());
    line[16..24].copy_from_slice(&sequence.to_le_bytes());
    line[24..28].copy_from_slice(&index.to_le_bytes());
    seal(&mut line, 60, 0);
    line
}

/// What stands where a segment's head goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentHead {
    /// The head of this segment, and its sequence.
    Ours(u64),
    /// Nothing, or what an earlier log left.
    None,
    /// Neither.
    Bad,
}

/// Reads what may be the head of segment `index` of log `id`.
pub(super) fn decode_segment(line: &Line, id: u64, index: u32) -> SegmentHead {
    if line.iter().all(|byte| *byte == 0) {
        return SegmentHead::None;
    }
    if line[..8] != SEGMENT_MAGIC || !sealed(line, 60, 0) {
        return SegmentHead::Bad;
    }
    let sequence = u64_at(line, 16);
    match u64_at(line, 8) == id {
        false => SegmentHead::None,
        true if u32_at(line, 24) == index && (1..COUNTERS).contains(&sequence) => {
            SegmentHead::Ours(sequence)
        }
        true => SegmentHead::Bad,
    }
}

impl Record {
    /// The head with a commit word of nought, for a record at `offset`.
    pub(super) fn encode(&self, id: u64, offset: u64) -> Line {
        let mut line = [0; 64];
        line[..8].copy_from_slice(&id.to_le_bytes());
        line[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        line[16..24].copy_from_slice(&self.serial.to_le_bytes());
        line[24..28].copy_from_slice(&self.body.to_le_bytes());
        line[28..32].copy_from_slice(&self.meta.to_le_bytes());
        line[32..36].copy_from_slice(&self.parts.to_le_bytes());
        line[36] = self.key;
        line[37] = match self.kind {
            Kind::Last => 1,
            Kind::Part => 2,
        };
        line[40..44].copy_from_slice(&self.tail_sum.to_le_bytes());
        seal(&mut line, 48, offset);
        line
    }

    /// A record that was written at `offset` of log `id` since its segment got `sequence`; nothing
    /// else passes.
    pub(super) fn decode(line: &Line, id: u64, sequence: u64, offset: u64) -> Option<Self> {
        Self::decode_any(line, id, offset).filter(|record| record.sequence == sequence)
    }

    /// A record that was written at `offset` of log `id`, whenever that was.
    pub(super) fn decode_any(line: &Line, id: u64, offset: u64) -> Option<Self> {
        if u64_at(line, 0) != id || !sealed(line, 48, offset) {
            return None;
        }
        let kind = match line[37] {
            1 => Kind::Last,
            2 => Kind::Part,
            _ => return None,
        };
        let record = Self {
            sequence: u64_at(line, 8),
            serial: u64_at(line, 16),
            body: u32_at(line, 24),
            meta: u32_at(line, 28),
            parts: u32_at(line, 32),
            key: line[36],
            kind,
            tail_sum: u32_at(line, 40),
        };
        let bounded = usize::from(record.key) <= MAX_KEY
            && u64::from(record.meta) <= MAX_META as u64
            && record.serial < COUNTERS
            && (1..COUNTERS).contains(&record.sequence);
        bounded.then_some(record)
    }

    /// The one commit word of this record: 64 bits that follow from its head, the log's random id
    /// among it, so that no content can hold it by chance or on purpose. Never nought.
    pub(super) fn commit_word(line: &Line, id: u64, offset: u64) -> u64 {
        let low = crc32c::crc32c_append(
            crc32c::crc32c(&id.rotate_left(17).to_le_bytes()),
            &line[..52],
        );
        let high =
            crc32c::crc32c_append(crc32c::crc32c(&(!id).to_le_bytes()), &offset.to_le_bytes());
        (u64::from(high) << 32 | u64::from(low)) | 1
    }

    /// Bytes of key, meta and parts. At most 4 GiB times [`PART`].
    pub(super) fn tail(&self) -> u64 {
        u64::from(self.key) + u64::from(self.meta) + u64::from(self.parts) * PART as u64
    }

    /// Bytes that it takes of its segment.
    pub(super) fn footprint(&self) -> u64 {
        align(LINE + u64::from(self.body) + self.tail())
    }
}

impl Part {
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        for field in [self.offset, self.len, self.sequence] {
            into.extend_from_slice(&field.to_le_bytes());
        }
    }

    /// `bytes` are [`PART`] many.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            offset: u64_at(bytes, 0),
            len: u64_at(bytes, 8),
            sequence: u64_at(bytes, 16),
        }
    }

    /// What a part takes of its segment, head included.
    pub(super) fn footprint(&self) -> u64 {
        align(LINE + self.len)
    }
}

/// The two copies together: the head to go by, whether both must be written, or that the region was
/// never formatted. `len` is the region's.
///
/// # Errors
/// [`Error::Format`]: what lies there is no log, or none that this version can use; nothing was
/// written.
pub(super) fn judge(copies: [Copy; 2], len: u64) -> Result<Option<(Head, bool)>, Error> {
    let refuse = |why: String| Err(Error::Format { why });
    let (head, mend) = match copies {
        // The copy at 4096 is written first. While the one at 0 is blank nothing was ever
        // committed.
        [Copy::Blank, Copy::Blank | Copy::Bad] => return Ok(None),
        [Copy::Good(head), Copy::Good(same)] if head == same => (head, false),
        [Copy::Good(_), Copy::Good(_)] => {
            return refuse("its two headers contradict each other".to_owned());
        }
        [Copy::Good(head), Copy::Blank | Copy::Bad]
        | [Copy::Blank | Copy::Bad, Copy::Good(head)] => (head, true),
        [Copy::Version(found), _] | [_, Copy::Version(found)] => {
            return refuse(format!(
                "it is of version {found}, and this is version {VERSION}"
            ));
        }
        [Copy::Bad, _] => {
            return refuse("both its headers are damaged, or it was never a log".to_owned());
        }
    };
    if head.size != len {
        return refuse(format!(
            "its header says {} bytes, but it has {len}",
            head.size
        ));
    }
    check_shape(len, head.segment)?;
    Ok(Some((head, mend)))
}

/// Whether a region of `len` bytes can have segments of `segment`.
///
/// # Errors
/// [`Error::Format`]
pub(super) fn check_shape(len: u64, segment: u64) -> Result<(), Error> {
    let (least, most) = SEGMENTS;
    if !segment.is_power_of_two() || !(least..=most).contains(&segment) {
        return Err(Error::Format {
            why: format!(
                "segments of {segment} bytes: a power of two from {least} to {most} is wanted"
            ),
        });
    }
    let segments = len.saturating_sub(base(segment)) / segment;
    if !(8..=u64::from(u32::MAX)).contains(&segments) {
        return Err(Error::Format {
            why: format!(
                "{len} bytes make {segments} segments of {segment}: at least 8 are wanted, at most 2^32 - 1"
            ),
        });
    }
    Ok(())
}

/// Rounds up to a line.
pub(super) const fn align(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE)
}

/// `at` and its checksum stand behind what they cover.
fn seal(line: &mut Line, at: usize, position: u64) {
    let sum = sum(&line[..at], position);
    line[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

fn sealed(line: &Line, at: usize, position: u64) -> bool {
    u32_at(line, at) == sum(&line[..at], position)
}

/// A head that got to another place, within a content that holds a copy of a region say, is none.
fn sum(bytes: &[u8], position: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&position.to_le_bytes()), bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |four| u32::from_le_bytes(*four))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |eight| u64::from_le_bytes(*eight))
}
