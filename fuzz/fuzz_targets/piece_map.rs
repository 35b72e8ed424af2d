//! Fuzz target: piece maps of the disk cache. A piece map names the staged ranges of a running fill.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_cache::fuzzing::piece_map(input));
