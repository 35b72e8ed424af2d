//! Heads of requests on plain connections.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::head(input));
