//! Fuzz target: layer skeletons in a bundle. A skeleton is a layer's tar without the contents of
//! its files; the worker rebuilds the tar from it.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::skeleton(input));
