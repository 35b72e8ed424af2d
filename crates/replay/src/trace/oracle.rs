//! Reads and writes oracleGeneral, the binary format of libCacheSim: records of 24 bytes,
//! little-endian, without a header.
//!
//! ```text
//! seconds, u32 | object, u64 | size, u32 | number of the next request for it, i64
//! ```
//! The last field is not read: the replay computes the future itself, and the field is wrong in
//! truncated or joined traces.

use pierhead_eviction::Access;

/// Size of a record in bytes.
pub const RECORD: usize = 24;

/// Encodes one record. `next` is the number of the next request for the key, counted from 0, or
/// [`u64::MAX`] for none. Returns `None` if the size exceeds 32 bits. A time that exceeds 32 bits
/// is written as the maximum.
pub fn bytes(access: &Access<u64>, next: u64) -> Option<[u8; RECORD]> {
    let time = u32::try_from(access.tick).unwrap_or(u32::MAX);
    let size = u32::try_from(access.size).ok()?;
    // The format counts requests from 1, and has -1 if there is no next request.
    let next = i64::try_from(next).map_or(-1, |next| next.saturating_add(1));
    let mut bytes = [0; RECORD];
    bytes[..4].copy_from_slice(&time.to_le_bytes());
    bytes[4..12].copy_from_slice(&access.key.to_le_bytes());
    bytes[12..16].copy_from_slice(&size.to_le_bytes());
    bytes[16..].copy_from_slice(&next.to_le_bytes());
    Some(bytes)
}

/// Decodes one record of 24 bytes.
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
