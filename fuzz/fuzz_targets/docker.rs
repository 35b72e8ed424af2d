//! Fuzz target: Docker's `config.json` files, from which pierhead reads registry credentials.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::docker(input));
