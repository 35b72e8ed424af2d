//! Fuzz target: image references that users write, such as `ghcr.io/team/app:v1`.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::reference(input));
