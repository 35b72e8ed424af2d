//! oracleGeneral, the binary format of libCacheSim: records of 24 bytes, little-endian, with no header.
//!
//! ```text
//! seconds, u32 | object, u64 | size, u32 | number of the next request for it, i64
//! ```
//! The last field is not read: the replay finds the future itself, and a trace that was cut or joined
//! has a wrong one.

use pierhead_eviction::Access;

/// Bytes of a record.
pub const RECORD: usize = 24;

/// One record as bytes; `next` is the number of the next request for its key from 0, or [`u64::MAX`] when there
/// is none. `None` when the size needs more than 32 bits; so late a time that does stays at the end.
pub fn bytes(access: &Access<u64>, next: u64) -> Option<[u8; RECORD]> {
    let time = u32::try_from(access.tick).unwrap_or(u32::MAX);
    let size = u32::try_from(access.size).ok()?;
    // Numbers from 1, and -1 for none.
    let next = i64::try_from(next).map_or(-1, |next| next.saturating_add(1));
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&time.to_le_bytes());
    bytes[4..12].copy_from_slice(&access.key.to_le_bytes());
    bytes[12..16].copy_from_slice(&size.to_le_bytes());
    bytes[16..].copy_from_slice(&next.to_le_bytes());
    Some(bytes)
}

/// One record.
pub(crate) fn record(bytes: &[u8; RECORD]) -> Access<u64> {
    let [
        t0,
        t1,
        t2,
        t3,
        k0,
        k1,
        k2,
        k3,
        k4,
        k5,
        k6,
        k7,
        s0,
        s1,
        s2,
        s3,
        ..,
    ] = *bytes;
    Access::new(
        u64::from_le_bytes([k0, k1, k2, k3, k4, k5, k6, k7]),
        u64::from(u32::from_le_bytes([s0, s1, s2, s3])),
        u64::from(u32::from_le_bytes([t0, t1, t2, t3])),
    )
}
