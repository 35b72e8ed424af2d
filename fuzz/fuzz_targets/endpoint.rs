//! Fuzz target: request paths of the Distribution API, with queries.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::endpoint(input));
