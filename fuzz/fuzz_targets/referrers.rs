//! Fuzz target: pages of referrers lists from registries (artifacts that refer to a manifest).

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::referrers(input));
