//! Fuzz target: `Link` headers of responses from registries, which name the next page of a list.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::link(input));
