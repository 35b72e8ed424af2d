//! Encodes and decodes the entries of a pack index. Each entry has the members (ranges of file
//! contents) of one record of the pack. `docs/formats/disk.md` specifies the format.

use crate::Error;
use pierhead_bundle::{Coding, MAX_FRAME, RECORD_HEAD};
use pierhead_toc::FileDigest;

use super::{ContentRange, MAX_MEMBERS};

/// Number of bytes before the first record of a pack, and also before the first entry of its index.
pub(super) const HEADER: usize = 16;
/// Number of bytes of an index entry without its members.
pub(super) const ENTRY: usize = 28;
/// Number of bytes of one member in an index entry.
pub(super) const MEMBER: usize = 44;
/// Maximum number of bytes of an index entry.
pub(super) const MAX_ENTRY: usize = ENTRY + MEMBER * MAX_MEMBERS;

const VERSION: u16 = 1;
pub(super) const PACK_MAGIC: &[u8; 8] = b"PIERPACK";
pub(super) const INDEX_MAGIC: &[u8; 8] = b"PIERPIDX";

/// The index entry of one record, without its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Offset of the record in the pack.
    pub(super) offset: u32,
    /// Length of the record in bytes, including its head.
    pub(super) len: u32,
    /// CRC-32C checksum of the record.
    pub(super) sum: u32,
    pub(super) coding: Coding,
    /// Offset and length of the record's entry in the index.
    pub(super) entry: (u32, u32),
}

pub(super) fn header(magic: &[u8; 8], pack: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(magic);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&pack.to_le_bytes());
    bytes
}

/// Encodes the entry of a record. Ignores `record.entry`.
///
/// # Errors
/// [`Error::Malformed`] for members that exceed the limits of a frame.
pub(super) fn encode(
    pack: u32,
    record: &Record,
    members: &[ContentRange],
) -> Result<Vec<u8>, Error> {
    check(members)?;
    let len = ENTRY + MEMBER * members.len();
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend([0; 4]);
    for number in [record.offset, record.len, record.sum] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([record.coding.number(), 0, 0, 0]);
    bytes.extend(
        u32::try_from(members.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes(),
    );
    for part in members {
        bytes.extend(part.content.as_bytes());
        bytes.extend(part.offset.to_le_bytes());
        bytes.extend(u32::try_from(part.len).unwrap_or(u32::MAX).to_le_bytes());
    }
    let sum = sum(pack, &bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    Ok(bytes)
}

/// Reads the length of an entry from the first four bytes of the entry.
pub(super) fn length(bytes: [u8; 4]) -> Result<usize, Error> {
    let len = u32::from_le_bytes(bytes) as usize;
    let is_possible = (ENTRY..=MAX_ENTRY).contains(&len) && (len - ENTRY).is_multiple_of(MEMBER);
    is_possible
        .then_some(len)
        .ok_or_else(|| malformed(format!("an entry of {len} bytes")))
}

/// Decodes an entry. `at` is the offset of the entry in the index.
///
/// # Errors
/// [`Error::Malformed`] for a damaged entry.
pub(super) fn decode(
    pack: u32,
    at: u32,
    bytes: &[u8],
) -> Result<(Record, Vec<ContentRange>), Error> {
    let len = length(array(bytes, 0)?)?;
    if len != bytes.len() {
        return Err(malformed("it ends within an entry"));
    }
    if number(bytes, 4)? != sum(pack, &bytes[8..]) {
        return Err(malformed("an entry's checksum does not match"));
    }
    let [coding, 0, 0, 0] = array(bytes, 20)? else {
        return Err(malformed("reserved bytes are set"));
    };
    if number(bytes, 24)? as usize != (len - ENTRY) / MEMBER {
        return Err(malformed("another number of members"));
    }
    let mut members = Vec::with_capacity((len - ENTRY) / MEMBER);
    for member in bytes[ENTRY..].chunks_exact(MEMBER) {
        members.push(ContentRange {
            content: FileDigest::from_bytes(array(member, 0)?),
            offset: u64::from_le_bytes(array(member, 32)?),
            len: u64::from(number(member, 40)?),
        });
    }
    check(&members)?;
    let record = Record {
        offset: number(bytes, 8)?,
        len: number(bytes, 12)?,
        sum: number(bytes, 16)?,
        coding: Coding::from_number(coding)?,
        entry: (at, u32::try_from(len).unwrap_or(u32::MAX)),
    };
    let most = RECORD_HEAD as u64 + MAX_FRAME;
    if !(RECORD_HEAD as u64 + 1..=most).contains(&u64::from(record.len)) {
        return Err(malformed(format!("a record of {} bytes", record.len)));
    }
    Ok((record, members))
}

/// Checks that the members of a frame stay within the limits of a frame, and that no member is
/// empty.
fn check(members: &[ContentRange]) -> Result<(), Error> {
    let mut total = 0_u64;
    for part in members {
        total = total.saturating_add(part.len);
        if part.len == 0 || total > MAX_FRAME || part.offset.checked_add(part.len).is_none() {
            return Err(malformed("members that exceed the limits of a frame"));
        }
    }
    if members.len() > MAX_MEMBERS {
        return Err(malformed("too many members"));
    }
    Ok(())
}

fn sum(pack: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&pack.to_le_bytes()), bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Error> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .ok_or_else(|| malformed("it ends within an entry"))
}

fn number(bytes: &[u8], at: usize) -> Result<u32, Error> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn malformed(why: impl Into<String>) -> Error {
    Error::malformed("pack index", why)
}
