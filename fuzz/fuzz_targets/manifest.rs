//! Fuzz target: image manifests and indexes, with the content type of the response.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::manifest(input));
