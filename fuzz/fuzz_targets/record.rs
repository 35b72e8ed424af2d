//! Files of names and pins.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::record(input));
