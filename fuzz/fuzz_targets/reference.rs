//! Fuzz target: image references of users.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::reference(input));
