//! Fuzz target: request paths and queries of the OCI Distribution API, parsed to the requested
//! manifest, blob or list.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::endpoint(input));
