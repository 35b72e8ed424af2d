//! Tests of the wire format of bundles, without a server and a worker: the decoders accept what the
//! encoders write, and refuse all other bytes.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "the fixtures' counts are small"
)]

mod bundles;
mod decoder;
mod frame_list;
mod header;
mod patch;
mod query;
