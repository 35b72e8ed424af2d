//! Fuzz target: `Location` headers and token realms of registries, and the check that blocks
//! internal addresses in these URLs (SSRF).

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::location(input));
