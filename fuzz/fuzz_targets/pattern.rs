//! Patterns of registries and repositories.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::pattern(input));
