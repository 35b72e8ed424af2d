//! Fuzz target: responses of token servers, which give registry clients their access tokens.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::token(input));
