//! Fuzz target: patterns of registries and repositories in the configuration, such as
//! `docker.io/library/*`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::pattern(input));
