//! Fuzz target: the list of frames in a bundle's header. A frame is a compressed part of the bundle
//! with some of the image's file contents.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::frames(input));
