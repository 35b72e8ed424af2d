//! Fuzz target: `Authorization` headers of requests from clients.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::authorization(input));
