//! Fuzz target: htpasswd files.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_proxy::fuzzing::htpasswd(input));
