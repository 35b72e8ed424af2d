//! Regions of the persistent-memory tier, as rot or a stranger may have left them.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pierhead_pmem::fuzzing::pmem_log(input));
