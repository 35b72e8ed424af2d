//! Fuzz target: layer blobs of any format.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    pierhead_toc::fuzzing::layer(input, folder.path());
});
