//! Fuzz target: responses of token servers.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::token(input));
