//! Fuzz target: recorded request traces for the eviction simulator. The first byte of the input
//! selects the trace format.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_replay::fuzzing::trace(input));
