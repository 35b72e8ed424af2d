//! Fuzz target: patch frames and the base contents of a worker.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::patch(input));
