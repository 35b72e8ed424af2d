//! Fuzz target: `Retry-After` headers of responses from registries.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::retry_after(input));
