//! Fuzz target: request paths and queries of clients, and the upstream registry that each request
//! selects.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::routed(input));
