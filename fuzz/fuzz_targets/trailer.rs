//! Fuzz target: blob files of the disk tier: contents and trailer.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::trailer(input));
