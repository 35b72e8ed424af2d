//! Fuzz target: saved states of eviction policies, which the cache restores at a start.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_replay::fuzzing::state(input));
