//! Fuzz target: lists of tags and referrers from registries, cut to the page that a client
//! requests.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::lists(input));
