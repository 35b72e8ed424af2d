//! Files of the disk tier: content and trailer.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::trailer(input));
