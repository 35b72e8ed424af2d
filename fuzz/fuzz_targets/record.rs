//! Fuzz target: record files of tags and pins in the data folder.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::record(input));
