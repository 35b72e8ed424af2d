//! Fuzz target: `Retry-After` headers of registries.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::retry_after(input));
