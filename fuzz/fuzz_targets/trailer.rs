//! Fuzz target: blob files of the disk cache. Each ends with a trailer that has the digest and the
//! checksums of the contents.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::trailer(input));
