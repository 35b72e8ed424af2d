//! References as people write them.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::reference(input));
