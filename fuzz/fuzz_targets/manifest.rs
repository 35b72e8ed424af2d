//! Fuzz target: manifests and indexes, with their content type.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::manifest(input));
