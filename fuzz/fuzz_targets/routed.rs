//! Paths with their queries: which registry they mean.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::routed(input));
