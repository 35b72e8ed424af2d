//! Fuzz target: tables of contents (TOCs): lists of the files in an image, which a bundle server
//! sends to its clients (workers).

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::toc(input));
