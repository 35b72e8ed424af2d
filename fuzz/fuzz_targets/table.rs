//! Tables of images, as a server sends them.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::table(input));
