//! Fuzz target: `Location` headers and token realms, and the SSRF guard for their targets.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::location(input));
