//! Tests of indexing with hostile layers: layers with a wrong digest, damaged layers, and layers
//! that exceed a limit are refused.

use std::sync::atomic::Ordering;

use pierhead_oci::{Algorithm, Digest};
use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::layer::{self, Limits, Pace, Request};
use pierhead_toc::{Entry, Error, FileDigest, Kind};

use crate::making::{Counted, Packing, Tar, gzip, indexed, indexed_with};

/// Indexes a layer that indexing must refuse, and returns the reason.
fn refused(blob: &MemoryBlob, tar: &[u8], limits: Limits) -> String {
    match indexed_with(blob, tar, limits) {
        Err(Error::Image(why)) => why,
        other => panic!("not refused: {other:?}"),
    }
}

fn entries(tar: &[u8]) -> Vec<Entry> {
    let index = indexed(&Packing::Gzip.pack(tar), tar).unwrap();
    index.entries().map(|entry| entry.unwrap()).collect()
}

/// Checks that indexing refuses a tar, and that the reason contains `words`.
fn bad_entry(tar: Tar, words: &str) {
    let tar = tar.finish();
    let why = refused(&Packing::Plain.pack(&tar), &tar, Limits::default());
    assert!(why.contains(words), "{why}");
}

#[test]
fn a_bomb_is_refused_by_the_limit_that_it_goes_over() {
    let mut tar = Tar::new();
    tar.file("zeros", &vec![0; 80 << 20]);
    let tar = tar.finish();
    let ratio = Limits {
        max_ratio: 100,
        ..Limits::default()
    };
    let size = Limits {
        max_size: 10 << 20,
        ..Limits::default()
    };
    for packing in [Packing::Gzip, Packing::Zstd] {
        let blob = packing.pack(&tar);
        let why = refused(&blob, &tar, ratio);
        assert!(why.contains("limit of 100 times"), "{why}");
        let why = refused(&blob, &tar, size);
        assert!(why.contains("bytes than the limit of 10485760"), "{why}");
    }
    // An uncompressed layer cannot exceed the limit of the compression ratio.
    assert!(indexed_with(&MemoryBlob(tar.clone()), &tar, ratio).is_ok());
}

#[test]
fn a_sparse_file_of_a_terabyte_is_refused_before_it_is_hashed() {
    let mut tar = Tar::new();
    let size = (1u64 << 40).to_string();
    tar.pax(&[
        ("GNU.sparse.map", b"0,0"),
        ("GNU.sparse.size", size.as_bytes()),
    ]);
    tar.file("sparse", b"");
    bad_entry(tar, "files of more bytes than the limit");
}

#[test]
fn holes_count_against_the_ratio() {
    let size = (70u64 << 20).to_string();
    let mut tar = Tar::new();
    tar.pax(&[
        ("GNU.sparse.map", b"0,0"),
        ("GNU.sparse.size", size.as_bytes()),
    ]);
    tar.file("sparse", b"");
    let tar = tar.finish();
    let limits = Limits {
        max_ratio: 100,
        ..Limits::default()
    };
    let why = refused(&MemoryBlob(tar.clone()), &tar, limits);
    assert!(why.contains("limit of 100 times"), "{why}");
}

#[test]
fn values_of_attributes_are_bounded() {
    let with = |len: usize| {
        let mut tar = Tar::new();
        tar.pax(&[("SCHILY.xattr.user.long", &vec![b'a'; len])]);
        tar.file("a", b"");
        tar
    };
    bad_entry(with((64 << 10) + 1), "extended attribute");
    let tar = with(64 << 10).finish();
    assert!(indexed(&Packing::Plain.pack(&tar), &tar).is_ok());
}

/// Returns a gzip file of stored blocks: the tar, with `count` empty blocks in its middle, where
/// indexing searches for checkpoints.
fn with_empty_blocks(tar: &[u8], count: usize) -> Vec<u8> {
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let block = |gzip: &mut Vec<u8>, last: bool, part: &[u8]| {
        let len = u16::try_from(part.len()).unwrap();
        gzip.push(last.into());
        gzip.extend(len.to_le_bytes());
        gzip.extend((!len).to_le_bytes());
        gzip.extend_from_slice(part);
    };
    let (head, tail) = tar.split_at(70 * 60_000);
    for part in head.chunks(60_000) {
        block(&mut gzip, false, part);
    }
    for _ in 0..count {
        block(&mut gzip, false, &[]);
    }
    for part in tail.chunks(60_000) {
        block(&mut gzip, false, part);
    }
    block(&mut gzip, true, &[]);
    let mut crc = flate2::Crc::new();
    crc.update(tar);
    gzip.extend(crc.sum().to_le_bytes());
    gzip.extend(u32::try_from(tar.len()).unwrap().to_le_bytes());
    gzip
}

#[test]
fn empty_blocks_are_not_each_tried_for_a_checkpoint() {
    let mut tar = Tar::new();
    tar.file("a", &vec![7; 6 << 20]);
    let tar = tar.finish();
    let blob = Counted::new(MemoryBlob(with_empty_blocks(&tar, 50_000)));
    let diff_id = Digest::of(Algorithm::Sha256, &tar);
    let request = Request {
        media_type: "application/vnd.oci.image.layer.v1.tar+gzip",
        diff_id: &diff_id,
        limits: Limits::default(),
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("index");
    // Indexing also calls the [`Pace`] while it reads blocks without data, so that a caller can
    // stop the work there.
    let (mut told, mut most) = (0, 0);
    let mut pace = ReadsAtPause(
        &mut |read: u64| {
            (told, most) = (read, most.max(read - told));
            Ok(())
        },
        &blob,
    );
    layer::index(&blob, &request, &mut pace, &out).unwrap();
    let reads = blob.reads.load(Ordering::Relaxed);
    assert!(reads < 300, "{reads} reads");
    assert!(most <= 8, "{most} reads without a pause");
}

/// A [`Pace`] that passes the number of reads of the blob to a function at each pause.
struct ReadsAtPause<'a>(&'a mut dyn FnMut(u64) -> Result<(), Error>, &'a Counted);

impl Pace for ReadsAtPause<'_> {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        (self.0)(self.1.reads.load(Ordering::Relaxed))
    }
}

#[test]
fn entries_are_counted() {
    let mut tar = Tar::new();
    for number in 0..11 {
        tar.directory(&format!("{number}"));
    }
    let tar = tar.finish();
    let limits = |max_entries| Limits {
        max_entries,
        ..Limits::default()
    };
    let why = refused(&MemoryBlob(tar.clone()), &tar, limits(10));
    assert!(why.contains("more entries than the limit of 10"), "{why}");
    assert!(indexed_with(&MemoryBlob(tar.clone()), &tar, limits(11)).is_ok());
}

#[test]
fn a_zstd_window_over_the_limit_is_refused() {
    let mut tar = Tar::new();
    tar.file("a", &vec![7; 3 << 20]);
    let tar = tar.finish();
    let blob = Packing::Zstd.pack(&tar);
    let limits = |max_window| Limits {
        max_window,
        ..Limits::default()
    };
    refused(&blob, &tar, limits(64 << 10));
    assert!(indexed_with(&blob, &tar, limits(4 << 20)).is_ok());
}

#[test]
fn what_is_cut_short_or_goes_on_is_refused() {
    let mut tar = Tar::new();
    tar.file("a", &[1; 3000]);
    let tar = tar.finish();
    for packing in [Packing::Gzip, Packing::GzipStored, Packing::Zstd] {
        let whole = packing.pack(&tar);
        assert!(indexed(&whole, &tar).is_ok());
        for cut in [1, 4, 8, 9, whole.0.len() / 2, whole.0.len() - 5] {
            let short = MemoryBlob(whole.0[..whole.0.len() - cut].to_vec());
            refused(&short, &tar, Limits::default());
        }
        for more in [&b"\0"[..], &[0; 512], b"junk behind it", b"\x1f\x8b\x08"] {
            let long = MemoryBlob([&whole.0[..], more].concat());
            refused(&long, &tar, Limits::default());
        }
    }
    // The CRC of this gzip file is wrong.
    let mut gzip = gzip(&tar, 6);
    let at = gzip.len() - 8;
    gzip[at] ^= 1;
    refused(&MemoryBlob(gzip), &tar, Limits::default());
    // The tar itself is truncated, in a header or in a content. Whole entries without an end mark
    // are accepted, as in Go.
    for (len, good) in [
        (100, false),
        (512, false),
        (2000, false),
        (3584, true),
        (3512, true),
    ] {
        let short = &tar[..len];
        assert_eq!(
            indexed(&MemoryBlob(short.to_vec()), short).is_ok(),
            good,
            "{len}"
        );
    }
}

#[test]
fn a_layer_that_is_not_its_diff_id_is_reported_and_leaves_nothing() {
    let tar = Tar::new().finish();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("index");
    let index = |diff_id: &Digest, media_type: &str, pace: &mut dyn Pace| {
        let request = Request {
            media_type,
            diff_id,
            limits: Limits::default(),
        };
        layer::index(&MemoryBlob(tar.clone()), &request, pace, &out)
    };
    let right = Digest::of(Algorithm::Sha256, &tar);
    let wrong = Digest::of(Algorithm::Sha256, b"other");
    let long = Digest::of(Algorithm::Sha512, &tar);
    let plain = "application/vnd.oci.image.layer.v1.tar";
    let lied = index(&wrong, plain, &mut layer::NoPacing);
    assert!(matches!(lied, Err(Error::Digest { .. })));
    let other = index(&long, plain, &mut layer::NoPacing);
    assert!(matches!(other, Err(Error::Image(_))));
    let sealed = format!("{plain}+encrypted");
    let sealed = index(&right, &sealed, &mut layer::NoPacing);
    assert!(matches!(sealed, Err(Error::Image(_))));
    let stopped = index(&right, plain, &mut Stop);
    assert!(matches!(stopped, Err(Error::Stopped)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(index(&right, plain, &mut layer::NoPacing).is_ok());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

struct Stop;

impl Pace for Stop {
    fn pause(&mut self, _bytes: u64) -> Result<(), Error> {
        Err(Error::Stopped)
    }
}

#[test]
fn names_do_not_lead_out_of_the_root() {
    let mut tar = Tar::new();
    tar.file("../../etc/passwd", b"x");
    tar.file("/etc/shadow", b"y");
    tar.hard_link("a/../b", "../../etc/passwd");
    tar.symlink("c", "../../../etc");
    tar.file("..", b"the root is no file");
    let entries = entries(&tar.finish());
    let paths: Vec<_> = entries.iter().map(|entry| &entry.path[..]).collect();
    assert_eq!(paths, [&b"etc/passwd"[..], b"etc/shadow", b"b", b"c"]);
    let target = b"etc/passwd".to_vec();
    assert_eq!(entries[2].kind, Kind::HardLink { target });
    let target = b"../../../etc".to_vec();
    assert_eq!(entries[3].kind, Kind::Symlink { target });
}

#[test]
fn what_runtimes_refuse_is_refused() {
    let with = |make: &dyn Fn(&mut Tar)| {
        let mut tar = Tar::new();
        make(&mut tar);
        tar
    };
    bad_entry(with(&|tar| tar.entry("a", b'Z', b"data")), "unknown type");
    bad_entry(with(&|tar| tar.file(".wh.", b"")), "whiteout");
    bad_entry(with(&|tar| tar.file("a/.wh...", b"")), "whiteout");
    bad_entry(with(&|tar| tar.hard_link("a", "..")), "hard link");
    bad_entry(with(&|tar| tar.symlink("a", "")), "symbolic link");
    // The extended header describes a sparse file, but the header after it is a directory.
    let sparse: &[(&str, &[u8])] = &[("GNU.sparse.map", b"0,1"), ("GNU.sparse.size", b"1")];
    let changed = |tar: &mut Tar| {
        tar.pax(sparse);
        tar.directory("a");
    };
    bad_entry(with(&changed), "sparse");
    // Returns headers that state a size of 1 TiB, without any data.
    let huge = |flag| {
        move |tar: &mut Tar| {
            let header = Tar::header("a", flag, 1 << 40);
            tar.raw(&header, b"");
        }
    };
    bad_entry(with(&huge(b'L')), "limit of 1 MiB");
    bad_entry(with(&huge(b'x')), "limit of 1 MiB");
    bad_entry(with(&huge(b'g')), "limit of 1 MiB");
    let sum = |tar: &mut Tar| {
        let mut header = Tar::header("a", b'0', 0);
        header.as_mut_bytes()[0] = b'b';
        tar.raw(&header, b"");
    };
    bad_entry(with(&sum), "checksum");
    for map in [
        "0,2",
        "5,1",
        "1,1,0,1",
        "0,1,1",
        "x",
        "0,18446744073709551615",
    ] {
        let lied = |tar: &mut Tar| {
            tar.pax(&[
                ("GNU.sparse.map", map.as_bytes()),
                ("GNU.sparse.size", b"3"),
            ]);
            tar.file("a", b"x");
        };
        bad_entry(with(&lied), "sparse file with a map");
    }
}

#[test]
fn sizes_of_links_and_directories_are_not_believed() {
    let mut tar = Tar::new();
    for (name, flag) in [("a", b'5'), ("b", b'1'), ("c", b'2'), ("d", b'6')] {
        let mut header = Tar::header(name, flag, 512);
        header.as_mut_bytes()[157] = b'x';
        header.set_cksum();
        tar.raw(&header, b"");
    }
    tar.file("e", b"here");
    let entries = entries(&tar.finish());
    assert_eq!(entries.len(), 5);
    let content = FileDigest::of(b"here");
    assert_eq!(entries[4].kind, Kind::File { content, size: 4 });
}
