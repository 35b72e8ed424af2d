//! Tests of the order in which a bundle sends files: first the files that a recorded container
//! start opened, then the programs that the image config names.

use fastrand::Rng;
use pierhead_bundle::patch::{Effort, Level};
use pierhead_bundle_server::plan::{Expected, Start, Traced, prepare};
use pierhead_testkit::source::MemorySource;
use pierhead_toc::FileDigest;
use pierhead_toc::{TocView, Tree};

use crate::images::{Files, text, toc};

/// Returns an ELF file with an interpreter, one needed library, and one search folder.
fn program(interpreter: &str, needed: &str, folder: &str) -> Vec<u8> {
    let strings = [
        &b"\0"[..],
        needed.as_bytes(),
        b"\0",
        folder.as_bytes(),
        b"\0",
    ]
    .concat();
    let mut file = vec![0; 0x200];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01");
    put(32, &64_u64.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &3_u16.to_le_bytes());
    let lens = [0x1000, 64, interpreter.len() as u64];
    let locations = [(1_u32, 0_u64), (2, 0x100), (3, 0x180)];
    for (nth, ((kind, offset), len)) in locations.into_iter().zip(lens).enumerate() {
        let at = 64 + nth * 56;
        put(at, &kind.to_le_bytes());
        put(at + 8, &offset.to_le_bytes());
        put(at + 16, &(0x1000 + offset).to_le_bytes());
        put(at + 32, &len.to_le_bytes());
    }
    let tags = [(1_u64, 1_u64), (5, 0x1200), (29, needed.len() as u64 + 2)];
    for (nth, (tag, value)) in tags.into_iter().enumerate() {
        put(0x100 + nth * 16, &tag.to_le_bytes());
        put(0x108 + nth * 16, &value.to_le_bytes());
    }
    put(0x180, interpreter.as_bytes());
    file.extend_from_slice(&strings);
    file
}

fn files() -> Files {
    let file = |path: &str, bytes: &[u8]| (path.to_owned(), bytes.to_vec());
    let python = program(
        "/lib64/ld-linux-x86-64.so.2",
        "libpython3.so",
        "$ORIGIN/../lib",
    );
    vec![
        file("app/unused.py", b"unused"),
        file("app/run", b"#!/usr/bin/env python3\nimport os\n"),
        file("etc/passwd", b"root"),
        file("lib64/ld-linux-x86-64.so.2", b"linker"),
        file("usr/bin/env", b"\x7fELF\x02\x01cut off"),
        file("usr/local/bin/python3", &python),
        file("usr/local/lib/libpython3.so", b"library"),
    ]
}

fn ranked(traced: &[Traced], files: &Files) -> Vec<String> {
    let mut source = MemorySource::default();
    let toc = toc(files, &mut source);
    let tree = Tree::of(TocView::mounted(&toc)).expect("a sound table");
    let start = Start {
        arguments: vec![b"./run".to_vec(), b"--verbose".to_vec()],
        environment: vec![b"PATH=/usr/local/bin:/usr/bin".to_vec()],
        folder: b"/app".to_vec(),
    };
    let expected = Expected::of(&tree, traced, &start, &source).expect("all is there");
    let path = |at| String::from_utf8_lossy(tree.path(at)).into_owned();
    let files = tree
        .files()
        .map(|(at, number)| (expected.rank(number), path(at)));
    let mut ranked: Vec<_> = files.filter(|(rank, _)| *rank < u32::MAX).collect();
    ranked.sort();
    ranked.into_iter().map(|(_, path)| path).collect()
}

const EXPECTED: [&str; 6] = [
    "app/run",
    "usr/bin/env",
    "usr/local/bin/python3",
    "lib64/ld-linux-x86-64.so.2",
    "usr/local/lib/libpython3.so",
    "etc/passwd",
];

#[test]
fn a_start_opens_its_script_the_interpreter_and_their_libraries() {
    assert_eq!(ranked(&[], &files()), EXPECTED);
}

#[test]
fn traced_files_come_first_by_path_and_by_content() {
    let traced = |path: &str, content| Traced {
        path: path.as_bytes().to_vec(),
        content,
    };
    let traces = [
        traced("etc/passwd", None),
        traced("before/it/moved.py", Some(FileDigest::of(b"unused"))),
        traced("not/there/any/more", Some(FileDigest::of(b"gone"))),
    ];
    let ranked = ranked(&traces, &files());
    assert_eq!(ranked[..2], ["etc/passwd", "app/unused.py"]);
    assert_eq!(ranked[2..], EXPECTED[..5]);
}

#[test]
fn the_frames_of_a_pair_follow_the_order() {
    let mut rng = Rng::with_seed(11);
    let mut new = files();
    // The files together are larger than a frame, so that there are several frames.
    for nth in 0..3 {
        new.push((format!("a/{nth}"), text(&mut rng, 3 << 20)));
    }
    let mut source = MemorySource::default();
    let base_image = toc(&Files::new(), &mut source);
    let want = toc(&new, &mut source);
    let want = TocView::mounted(&want);
    let tree = Tree::of(want).expect("a sound table");
    let start = Start {
        arguments: vec![b"/app/run".to_vec()],
        ..Start::default()
    };
    let expected = Expected::of(&tree, &[], &start, &source).expect("all is there");
    let mut ranks = Vec::new();
    prepare(
        want,
        TocView::mounted(&base_image),
        &expected,
        &source,
        Effort::Level(Level::FAST),
        &mut |_| Ok(()),
        &mut |frame, _| {
            ranks.extend(
                frame
                    .members
                    .iter()
                    .map(|member| expected.rank(member.content)),
            );
            Ok(())
        },
    )
    .expect("all is there");
    assert!(ranks.is_sorted() && ranks.len() == new.len(), "{ranks:?}");
}
