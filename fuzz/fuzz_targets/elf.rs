//! Fuzz target: ELF programs of an image.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle_server::fuzzing::elf(input));
