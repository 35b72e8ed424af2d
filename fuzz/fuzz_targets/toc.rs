//! Fuzzes the parser of TOCs with bytes that a server could send.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_toc::fuzzing::toc(input));
