//! Fuzz target: layer skeletons in a bundle.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::skeleton(input));
