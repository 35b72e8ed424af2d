//! Fuzz target: layer skeletons in a bundle. A skeleton is a layer's tar without the contents of
//! its files; the client of the bundle (worker) rebuilds the tar from the skeleton and the file
//! contents.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::skeleton(input));
