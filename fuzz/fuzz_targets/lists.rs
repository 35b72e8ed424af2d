//! Fuzz target: tag lists and referrers lists of registries, with the query of a client.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::lists(input));
