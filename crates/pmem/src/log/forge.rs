//! Helper of the fuzz target: builds regions whose fields have arbitrary values and valid
//! checksums. An attacker could write such regions.

use super::layout::{COMMIT_OFFSET, Head, Kind, LINE, Line, Record, base, encode_segment};

/// Size of a forged region in bytes: 8 segments of 4 KiB.
const SIZE: usize = 8192 + 8 * 4096;
const ID: u64 = 7;

/// Builds a log with valid heads, modified by the input. The input is a sequence of edits: an
/// offset in lines (2 bytes), a kind (1 byte), a length (1 byte), and then as many bytes as the
/// length says. Heads of segments and records get valid checksums, and records get valid commit
/// words.
pub(crate) fn forge(mut input: &[u8]) -> Vec<u8> {
    let mut region = vec![0; SIZE];
    let head = Head {
        id: ID,
        size: SIZE as u64,
        segment: 4096,
    };
    for at in [0, 4096] {
        region[at..at + 64].copy_from_slice(&head.encode());
    }
    while let Some(([low, high, kind, len], rest)) = input.split_first_chunk() {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        input = rest;
        let line = usize::from(u16::from_le_bytes([*low, *high])) % ((SIZE - 8192) / 64);
        let at = 8192 + line * 64;
        let room = bytes.len().min(SIZE - at);
        region[at..at + room].copy_from_slice(&bytes[..room]);
        let mut given = [0u8; 64];
        given[..room.min(64)].copy_from_slice(&bytes[..room.min(64)]);
        match kind % 3 {
            1 => region[at..at + 64].copy_from_slice(&segment(at, &given)),
            2 => record(&mut region, at, &given),
            _ => {}
        }
    }
    region
}

fn segment(at: usize, given: &Line) -> Line {
    let index = u32::try_from((at as u64 - base(4096)) / 4096).unwrap_or(0);
    encode_segment(ID, u64::from(given[0]), index)
}

fn record(region: &mut [u8], at: usize, given: &Line) {
    let record = Record {
        sequence: given[0].into(),
        serial: given[1].into(),
        body: u16::from_le_bytes([given[2], given[3]]).into(),
        meta: u16::from_le_bytes([given[4], given[5]]).into(),
        parts: given[6].into(),
        key: given[7],
        kind: if given[8].is_multiple_of(4) {
            Kind::Part
        } else {
            Kind::Last
        },
        tail_sum: 0,
    };
    let from = at + usize::try_from(LINE + u64::from(record.body)).unwrap_or(0);
    let tail = usize::try_from(record.tail())
        .ok()
        .and_then(|len| region.get(from..from + len));
    let record = Record {
        tail_sum: tail.map_or(0, crc32c::crc32c),
        ..record
    };
    let mut line = record.encode(ID, at as u64);
    let word = Record::commit_word(&line, ID, at as u64);
    let commit = usize::try_from(COMMIT_OFFSET).unwrap_or(56);
    line[commit..].copy_from_slice(&word.to_le_bytes());
    region[at..at + 64].copy_from_slice(&line);
}
