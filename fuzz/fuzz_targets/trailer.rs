//! Fuzz target: blob files of the disk cache. Each blob file ends with a trailer, which has the
//! checksums of the contents.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::trailer(input));
