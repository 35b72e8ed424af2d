//! Fuzz target: `Range`, `If-Range` and `If-None-Match` headers of requests from clients.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::range(input));
