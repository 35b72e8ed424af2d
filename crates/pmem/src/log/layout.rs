//! The binary encoding of the log: the head of the log, and the heads of segments and records.
//! `docs/formats/pmem.md` has diagrams.

use crate::Error;

/// Version of the layout of the log and of the values that pierhead stores in the log. In a log of
/// version 2, the key of a hot copy was the complement of a digest.
const VERSION: u32 = 3;
const MAGIC: [u8; 8] = *b"PIERPMEM";
const SEGMENT_MAGIC: [u8; 8] = *b"PIERSEGM";
/// Length of each head in bytes. A head is one cache line, so that a single flush covers it.
pub(super) const LINE: u64 = 64;
/// Offsets of the two copies of the log's head. Each copy has a page of its own, so that a
/// defective page affects only one copy.
pub(super) const HEAD_OFFSETS: [u64; 2] = [0, 4096];
/// Number of bytes before the first segment.
const HEAD_PAGES: u64 = 8192;
/// Maximum length of a key in bytes.
pub const MAX_KEY_LEN: usize = 72;
/// Maximum length of a value's meta in bytes.
pub const MAX_META_LEN: usize = 64 * 1024;
/// Minimum and maximum size of a segment in bytes.
pub const SEGMENT_SIZES: (u64, u64) = (4096, 1 << 30);
/// Length of a part's entry in the tail of a record, in bytes.
pub(super) const PART_LEN: usize = 24;
/// Offset of the commit word in the head of a record.
pub(super) const COMMIT_OFFSET: u64 = 56;

/// Upper bound of the sequences and serials in heads, so that counters cannot overflow when they
/// continue from these numbers.
const MAX_COUNTER: u64 = 1 << 62;

/// The bytes of one head: one cache line.
pub(super) type Line = [u8; 64];

/// The head of the log, which identifies the log and its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Random number that identifies this log. Bytes of an earlier log in the same region have
    /// another number.
    pub(super) id: u64,
    /// Size of the region in bytes.
    pub(super) size: u64,
    /// Size of a segment in bytes.
    pub(super) segment: u64,
}

/// The state of one copy of the log's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeadCopy {
    /// The copy of the head is intact.
    Intact(Head),
    /// The copy has another layout version.
    Version(u32),
    /// The copy consists of zeros, so it was never written.
    Blank,
    /// The copy is damaged or is not a head.
    Damaged,
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The last record of a value, which commits it: it contains the value's last bytes, key and
    /// meta, and the positions of the value's other parts.
    Last,
    /// Any other part of a value. The last record of the value refers to this part.
    Part,
}

/// The head of a record, without its commit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    /// Sequence that the segment of the record had when the record was written.
    pub(super) sequence: u64,
    /// If two records have the same key, the record with the higher serial is newer.
    pub(super) serial: u64,
    /// Number of content bytes after the record's head.
    pub(super) body: u32,
    /// Length of the meta in bytes.
    pub(super) meta: u32,
    /// Number of parts of the value that are in other records.
    pub(super) parts: u32,
    /// Length of the key in bytes.
    pub(super) key: u8,
    /// The kind of the record.
    pub(super) kind: Kind,
    /// CRC-32C of the key, the meta and the list of parts.
    pub(super) tail_sum: u32,
}

/// The position of a part of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// Offset of the part in bytes from the region's start.
    pub(super) offset: u64,
    /// Length of the part in bytes, at least 1.
    pub(super) len: u64,
    /// Sequence that the segment of the part had when the part was written.
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
        write_sum(&mut line, 60, 0);
        line
    }

    /// Returns the number of segments in the region.
    pub(super) fn segments(&self) -> u64 {
        self.size.saturating_sub(base(self.segment)) / self.segment
    }
}

/// Returns the offset of the first segment, for this size of segments. Each segment begins at a
/// multiple of its size. Thus no folio (a block of pages in the page cache) contains bytes of two
/// segments.
pub(super) const fn base(segment: u64) -> u64 {
    if segment > HEAD_PAGES {
        segment
    } else {
        HEAD_PAGES
    }
}

impl HeadCopy {
    /// Decodes one of the two copies of the log's head.
    pub(super) fn decode(line: &Line) -> Self {
        if line.iter().all(|byte| *byte == 0) {
            return Self::Blank;
        }
        if line[..8] != MAGIC || !has_valid_sum(line, 60, 0) {
            return Self::Damaged;
        }
        let version = u32_at(line, 8);
        if version != VERSION {
            return Self::Version(version);
        }
        Self::Intact(Head {
            size: u64_at(line, 16),
            segment: u64_at(line, 24),
            id: u64_at(line, 32),
        })
    }
}

/// Encodes the head of a segment: number of the log, sequence of the segment, and index of the
/// segment.
pub(super) fn encode_segment(id: u64, sequence: u64, index: u32) -> Line {
    let mut line = [0; 64];
    line[..8].copy_from_slice(&SEGMENT_MAGIC);
    line[8..16].copy_from_slice(&id.to_le_bytes());
    line[16..24].copy_from_slice(&sequence.to_le_bytes());
    line[24..28].copy_from_slice(&index.to_le_bytes());
    write_sum(&mut line, 60, 0);
    line
}

/// The state of a segment's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentHead {
    /// The head is valid for this segment. Contains the sequence of the segment.
    Valid(u64),
    /// The head consists of zeros, or belongs to an earlier log.
    Absent,
    /// The head of the segment is damaged.
    Damaged,
}

/// Decodes the head of segment `index` of log `id`.
pub(super) fn decode_segment(line: &Line, id: u64, index: u32) -> SegmentHead {
    if line.iter().all(|byte| *byte == 0) {
        return SegmentHead::Absent;
    }
    if line[..8] != SEGMENT_MAGIC || !has_valid_sum(line, 60, 0) {
        return SegmentHead::Damaged;
    }
    let sequence = u64_at(line, 16);
    match u64_at(line, 8) == id {
        false => SegmentHead::Absent,
        true if u32_at(line, 24) == index && (1..MAX_COUNTER).contains(&sequence) => {
            SegmentHead::Valid(sequence)
        }
        true => SegmentHead::Damaged,
    }
}

impl Record {
    /// Encodes the head of a record at `offset`. The commit word in the encoding is 0.
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
        write_sum(&mut line, 48, offset);
        line
    }

    /// Decodes the head of a record at `offset` of log `id` in a segment with this sequence. `None`
    /// if the bytes are no such head.
    pub(super) fn decode(line: &Line, id: u64, sequence: u64, offset: u64) -> Option<Self> {
        Self::decode_any(line, id, offset).filter(|record| record.sequence == sequence)
    }

    /// Decodes the head of a record like [`Self::decode`], with any sequence.
    pub(super) fn decode_any(line: &Line, id: u64, offset: u64) -> Option<Self> {
        if u64_at(line, 0) != id || !has_valid_sum(line, 48, offset) {
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
        let bounded = usize::from(record.key) <= MAX_KEY_LEN
            && u64::from(record.meta) <= MAX_META_LEN as u64
            && record.serial < MAX_COUNTER
            && (1..MAX_COUNTER).contains(&record.sequence);
        bounded.then_some(record)
    }

    /// Returns the commit word of this record, which is never 0. The 64 bits of the word depend on
    /// the head and on the random number of the log. Thus the content of a value cannot contain the
    /// commit word, neither by chance nor on purpose.
    pub(super) fn commit_word(line: &Line, id: u64, offset: u64) -> u64 {
        let low = crc32c::crc32c_append(
            crc32c::crc32c(&id.rotate_left(17).to_le_bytes()),
            &line[..52],
        );
        let high =
            crc32c::crc32c_append(crc32c::crc32c(&(!id).to_le_bytes()), &offset.to_le_bytes());
        (u64::from(high) << 32 | u64::from(low)) | 1
    }

    /// Returns the length of key, meta and list of parts in bytes. The length is at most 4 GiB
    /// times [`PART_LEN`].
    pub(super) fn tail(&self) -> u64 {
        u64::from(self.key) + u64::from(self.meta) + u64::from(self.parts) * PART_LEN as u64
    }

    /// Returns the bytes that the record occupies in its segment.
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

    /// Decodes a part. `bytes` must have the length [`PART_LEN`].
    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            offset: u64_at(bytes, 0),
            len: u64_at(bytes, 8),
            sequence: u64_at(bytes, 16),
        }
    }

    /// Returns the bytes that a part occupies in its segment, including the head of its record.
    pub(super) fn footprint(&self) -> u64 {
        align(LINE + self.len)
    }
}

/// Combines both copies of the log's head. Returns the head, and whether both copies must be
/// rewritten. Returns `None` for a region that was never formatted. `len` is the size of the region
/// in bytes.
///
/// # Errors
/// [`Error::Format`] when the region has no log that this version can use. The region was not
/// changed.
pub(super) fn combine_copies(
    copies: [HeadCopy; 2],
    len: u64,
) -> Result<Option<(Head, bool)>, Error> {
    let refuse = |why: String| Err(Error::Format { why });
    let (head, must_rewrite) = match copies {
        // The copy at 4096 is written before the copy at 0. While the copy at 0 is blank, no value
        // was ever committed.
        [HeadCopy::Blank, HeadCopy::Blank | HeadCopy::Damaged] => return Ok(None),
        [HeadCopy::Intact(head), HeadCopy::Intact(same)] if head == same => (head, false),
        [HeadCopy::Intact(_), HeadCopy::Intact(_)] => {
            return refuse("its two headers contradict each other".to_owned());
        }
        [HeadCopy::Intact(head), HeadCopy::Blank | HeadCopy::Damaged]
        | [HeadCopy::Blank | HeadCopy::Damaged, HeadCopy::Intact(head)] => (head, true),
        [HeadCopy::Version(found), _] | [_, HeadCopy::Version(found)] => {
            return refuse(format!(
                "it has version {found}, but this pierhead supports version {VERSION}"
            ));
        }
        [HeadCopy::Damaged, _] => {
            return refuse("both its headers are damaged, or it is not a log".to_owned());
        }
    };
    if head.size != len {
        return refuse(format!(
            "its header says {} bytes, but it has {len}",
            head.size
        ));
    }
    check_shape(len, head.segment)?;
    Ok(Some((head, must_rewrite)))
}

/// Checks whether a region of `len` bytes can have segments of `segment` bytes.
///
/// # Errors
/// [`Error::Format`] when the region cannot have such segments.
pub(super) fn check_shape(len: u64, segment: u64) -> Result<(), Error> {
    let (least, most) = SEGMENT_SIZES;
    if !segment.is_power_of_two() || !(least..=most).contains(&segment) {
        return Err(Error::Format {
            why: format!(
                "segments of {segment} bytes: the size must be a power of two from {least} to {most}"
            ),
        });
    }
    let segments = len.saturating_sub(base(segment)) / segment;
    if !(8..=u64::from(u32::MAX)).contains(&segments) {
        return Err(Error::Format {
            why: format!(
                "{len} bytes make {segments} segments of {segment}: at least 8 are required, at most 2^32 - 1"
            ),
        });
    }
    Ok(())
}

/// Rounds a number of bytes up to a whole line.
pub(super) const fn align(bytes: u64) -> u64 {
    bytes.next_multiple_of(LINE)
}

/// Computes the checksum of the bytes before position `at` of the line, and writes it to position
/// `at`.
fn write_sum(line: &mut Line, at: usize, position: u64) {
    let sum = sum(&line[..at], position);
    line[at..at + 4].copy_from_slice(&sum.to_le_bytes());
}

fn has_valid_sum(line: &Line, at: usize, position: u64) -> bool {
    u32_at(line, at) == sum(&line[..at], position)
}

/// Computes the checksum of a head. The checksum covers the position of the head. Thus a copy of a
/// head in the content of a value is not taken for a head.
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
