//! Fuzz target: small checksummed files of the data folder that store tags and pins.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::record(input));
