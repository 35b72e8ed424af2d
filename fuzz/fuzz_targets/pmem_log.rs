//! Fuzz target: damaged files of the persistent-memory tier, which hold a log of cached blobs.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_pmem::fuzzing::pmem_log(input));
