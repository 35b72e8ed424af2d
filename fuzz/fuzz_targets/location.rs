//! `Location` headers and realms: where they lead, and whether one may go there.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_remote::fuzzing::location(input));
