//! Fuzz target: bundles: responses of a bundle server with the files of an image that a worker
//! lacks.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::bundle(input));
