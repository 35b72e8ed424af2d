//! Fuzz target: bundles that a worker receives.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle::fuzzing::bundle(input));
