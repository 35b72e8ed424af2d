//! Lists of an upstream, and the query that a client has for them.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::lists(input));
