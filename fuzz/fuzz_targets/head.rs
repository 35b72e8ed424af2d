//! Fuzz target: heads (request line and headers) of HTTP/1 requests from clients.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::head(input));
