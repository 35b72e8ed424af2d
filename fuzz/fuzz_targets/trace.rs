//! Fuzz target: request traces, after a byte that selects the format.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_replay::fuzzing::trace(input));
