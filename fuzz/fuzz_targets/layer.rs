//! Fuzz target: layer blobs of an image: tar archives, uncompressed or compressed with gzip or
//! zstd.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    pierhead_toc::fuzzing::layer(input, folder.path());
});
