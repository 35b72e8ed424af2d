//! Tests of the wire format of bundles, without a server and a worker: the decoders accept what the
//! encoders write, and refuse all other bytes.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "the fixtures' counts are small"
)]

#[path = "wire/bundles.rs"]
mod bundles;
#[path = "wire/decoder.rs"]
mod decoder;
#[path = "wire/frame_list.rs"]
mod frame_list;
#[path = "wire/header.rs"]
mod header;
#[path = "wire/patch.rs"]
mod patch;
#[path = "wire/query.rs"]
mod query;
