//! Fuzz target: request paths with queries, and the registry that they select.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::routed(input));
