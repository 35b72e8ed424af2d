//! Fuzz target: the list of frames in the header of a bundle.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::frames(input));
