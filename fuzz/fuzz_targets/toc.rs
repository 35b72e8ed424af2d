//! Fuzz target: tables of contents (TOCs) that a server sends.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::toc(input));
