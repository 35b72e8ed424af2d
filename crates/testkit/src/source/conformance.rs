//! The conformance test suite that every source of file contents must pass (trait `Source`).

use std::io;

use pierhead_bundle::MAX_FRAME;
use pierhead_toc::{FileDigest, Source};

/// Number of reads at random offsets. The reads alternate between all contents, so that the suite
/// finds state that leaks from one read to the next.
const READS: usize = 300;

/// Runs the conformance suite of sources. `new` returns a source with exactly the given contents.
/// One content is empty, some are larger than a frame of a bundle, some are compressible, and some
/// are not.
///
/// # Panics
/// Panics if the source violates the contract of [`Source`].
pub fn conforms<S: Source>(new: impl Fn(&[Vec<u8>]) -> S) {
    let contents = contents();
    let source = new(&contents);
    returns_sizes(&source, &contents);
    reads_each_content_completely(&source, &contents);
    reads_any_range(&source, &contents);
    fails_beyond_the_end(&source, &contents);
    fails_for_unknown_contents(&source, &contents);
    // The errors of the earlier checks must not affect these reads.
    reads_each_content_completely(&source, &contents);
    let empty = new(&[]);
    for bytes in &contents {
        assert_unknown(&empty, &FileDigest::of(bytes));
    }
}

fn contents() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(5);
    let frame = usize::try_from(MAX_FRAME).expect("small");
    let mut contents = vec![Vec::new(), b"a".to_vec(), vec![0; frame * 2 + 1]];
    for size in [
        511,
        512,
        513,
        4095,
        4096,
        4097,
        65_535,
        65_536,
        300_000,
        frame,
        frame + 3,
    ] {
        let mut bytes = vec![0; size];
        random.fill(&mut bytes);
        contents.push(bytes);
    }
    // The contents are compressible text that is similar in each version.
    for version in 0..4 {
        let lines = (0..2000).map(|line| format!("{line}: version {version} of this line\n"));
        contents.push(lines.collect::<String>().into_bytes());
    }
    contents
}

fn read(source: &impl Source, bytes: &[u8], offset: usize, len: usize) {
    let content = FileDigest::of(bytes);
    read_named(source, &content, bytes, offset, len);
}

fn read_named(source: &impl Source, content: &FileDigest, bytes: &[u8], offset: usize, len: usize) {
    // The buffer is not filled with zeros, so that the test detects bytes that were not written.
    let mut buf = vec![0xa5; len];
    source
        .read_at(content, offset as u64, &mut buf)
        .unwrap_or_else(|error| panic!("{len} bytes from {offset} of {}: {error}", bytes.len()));
    // Does not use `assert_eq!`, which would print megabytes.
    assert!(
        buf == bytes[offset..offset + len],
        "{len} bytes from {offset} of {} are wrong",
        bytes.len()
    );
}

fn returns_sizes(source: &impl Source, contents: &[Vec<u8>]) {
    for bytes in contents {
        assert_eq!(
            source.size(&FileDigest::of(bytes)).expect("a lookup"),
            Some(bytes.len() as u64)
        );
    }
}

fn reads_each_content_completely(source: &impl Source, contents: &[Vec<u8>]) {
    for bytes in contents {
        read(source, bytes, 0, bytes.len());
    }
    for bytes in contents.iter().rev() {
        let content = FileDigest::of(bytes);
        for (index, piece) in bytes.chunks(100_000).enumerate() {
            read_named(source, &content, bytes, index * 100_000, piece.len());
        }
    }
}

fn reads_any_range(source: &impl Source, contents: &[Vec<u8>]) {
    let mut random = fastrand::Rng::with_seed(6);
    let names: Vec<FileDigest> = contents.iter().map(|bytes| FileDigest::of(bytes)).collect();
    for _ in 0..READS {
        let which = random.usize(..contents.len());
        let bytes = &contents[which];
        let offset = random.usize(..=bytes.len());
        let len = random.usize(..=(bytes.len() - offset).min(9000));
        read_named(source, &names[which], bytes, offset, len);
    }
    let frame = usize::try_from(MAX_FRAME).expect("small");
    for bytes in contents.iter().filter(|bytes| bytes.len() > frame) {
        read(source, bytes, frame - 2, 3);
        read(source, bytes, frame, 1);
        read(source, bytes, bytes.len() - 1, 1);
    }
}

fn fails_beyond_the_end(source: &impl Source, contents: &[Vec<u8>]) {
    for bytes in contents {
        let content = FileDigest::of(bytes);
        let size = bytes.len() as u64;
        read(source, bytes, bytes.len(), 0);
        for (offset, len) in [
            (size, 1),
            (size.saturating_sub(1), 2),
            (0, bytes.len() + 1),
            (size + 1, 1),
            (u64::MAX, 1),
            (u64::MAX - 1, 100),
        ] {
            let error = source
                .read_at(&content, offset, &mut vec![0; len])
                .expect_err("a read beyond the end");
            assert_eq!(
                error.kind(),
                io::ErrorKind::UnexpectedEof,
                "{len} bytes from {offset} of {size}: {error}"
            );
        }
    }
}

fn fails_for_unknown_contents(source: &impl Source, contents: &[Vec<u8>]) {
    let near = contents.iter().filter(|bytes| bytes.len() > 1);
    let near = near.map(|bytes| FileDigest::of(&bytes[1..]));
    let never = [[0; 32], [255; 32]].map(FileDigest::from_bytes);
    for content in near.chain(never) {
        if !contents
            .iter()
            .any(|bytes| FileDigest::of(bytes) == content)
        {
            assert_unknown(source, &content);
        }
    }
}

fn assert_unknown(source: &impl Source, content: &FileDigest) {
    assert_eq!(source.size(content).expect("a lookup"), None);
    for offset in [0, 1, u64::MAX] {
        let error = source
            .read_at(content, offset, &mut [0; 1])
            .expect_err("a read of unknown contents");
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
