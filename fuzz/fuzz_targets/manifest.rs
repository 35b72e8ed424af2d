//! Manifests and indexes, with the content type they were sent with.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::manifest(input));
