//! Fuzz target: patches in a bundle: zstd-compressed differences to a file content that the client
//! (worker) already has.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::patch(input));
