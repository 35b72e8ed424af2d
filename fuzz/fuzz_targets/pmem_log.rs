//! Fuzz target: damaged regions of the persistent-memory tier.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_pmem::fuzzing::pmem_log(input));
