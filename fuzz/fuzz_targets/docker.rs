//! Fuzz target: Docker's `config.json`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::docker(input));
