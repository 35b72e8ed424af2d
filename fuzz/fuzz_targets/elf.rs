//! Fuzz target: headers of ELF programs in an image, from which pierhead reads the required
//! libraries.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_bundle_server::fuzzing::elf(input));
