//! What every source owes to those who read it, wherever its bytes lie.

use std::io;

use pierhead_bundle::MAX_FRAME;
use pierhead_toc::{FileDigest, Source};

/// Reads at random places, of all contents in turn: what one read leaves behind must not reach the next.
const READS: usize = 300;

/// The conformance suite. `new` gives a source that has these contents (each once, one of them empty, some
/// larger than a frame, some that compress and some that do not), and nothing else that the suite asks for.
///
/// # Panics
/// When the source breaks a promise of [`Source`].
pub fn conforms<S: Source>(new: impl Fn(&[Vec<u8>]) -> S) {
    let contents = contents();
    let source = new(&contents);
    knows_sizes(&source, &contents);
    gives_all_of_each(&source, &contents);
    gives_any_range(&source, &contents);
    says_where_the_end_is(&source, &contents);
    says_what_is_not_here(&source, &contents);
    // Not even after all those errors.
    gives_all_of_each(&source, &contents);
    let empty = new(&[]);
    for bytes in &contents {
        lacks(&empty, &FileDigest::of(bytes));
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
    // As a program's text: what compresses, and is like its neighbour.
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
    // Not zeros: what is left as it was must show.
    let mut buf = vec![0xa5; len];
    source
        .read_at(content, offset as u64, &mut buf)
        .unwrap_or_else(|error| panic!("{len} bytes from {offset} of {}: {error}", bytes.len()));
    // Not by assert_eq!: nobody reads megabytes.
    assert!(
        buf == bytes[offset..offset + len],
        "{len} bytes from {offset} of {} are others",
        bytes.len()
    );
}

fn knows_sizes(source: &impl Source, contents: &[Vec<u8>]) {
    for bytes in contents {
        assert_eq!(
            source.size(&FileDigest::of(bytes)).expect("looks it up"),
            Some(bytes.len() as u64)
        );
    }
}

fn gives_all_of_each(source: &impl Source, contents: &[Vec<u8>]) {
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

fn gives_any_range(source: &impl Source, contents: &[Vec<u8>]) {
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

fn says_where_the_end_is(source: &impl Source, contents: &[Vec<u8>]) {
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
                .expect_err("there is no such byte");
            assert_eq!(
                error.kind(),
                io::ErrorKind::UnexpectedEof,
                "{len} bytes from {offset} of {size}: {error}"
            );
        }
    }
}

fn says_what_is_not_here(source: &impl Source, contents: &[Vec<u8>]) {
    let near = contents.iter().filter(|bytes| bytes.len() > 1);
    let near = near.map(|bytes| FileDigest::of(&bytes[1..]));
    let never = [[0; 32], [255; 32]].map(FileDigest::from_bytes);
    for content in near.chain(never) {
        if !contents
            .iter()
            .any(|bytes| FileDigest::of(bytes) == content)
        {
            lacks(source, &content);
        }
    }
}

fn lacks(source: &impl Source, content: &FileDigest) {
    assert_eq!(source.size(content).expect("looks it up"), None);
    for offset in [0, 1, u64::MAX] {
        let error = source
            .read_at(content, offset, &mut [0; 1])
            .expect_err("it is not here");
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
