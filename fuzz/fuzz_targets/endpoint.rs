//! Request paths of the Distribution API with their query.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_fuzz::endpoint(input));
