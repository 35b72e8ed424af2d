//! oracleGeneral, the binary format of libCacheSim: records of 24 bytes, little-endian, with no header.
//!
//! ```text
//! seconds, u32 | object, u64 | size, u32 | number of the next request for it, i64
//! ```
//! The last field is not read: the replay finds the future itself, and a trace that was cut or joined
//! has a wrong one.

use crate::Access;

/// Bytes of a record.
pub(crate) const RECORD: usize = 24;

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
