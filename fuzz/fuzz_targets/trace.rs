//! Traces of requests, after a byte that chooses the format.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_replay::fuzzing::trace(input));
