//! Fuzz target: delta bundles, the responses of a bundle server with the file contents of an image
//! that a client (worker) lacks.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::bundle(input));
