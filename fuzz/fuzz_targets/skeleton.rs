//! Skeletons of layers, as they come over the wire.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::skeleton(input));
