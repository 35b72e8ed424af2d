//! Tests of the attributes of entries in a layer: the index has all attributes of a tar, in every
//! header format that tar writers use.

use std::sync::Arc;

use pierhead_toc::{Entry, FileDigest, Kind, Time};

use crate::check;
use crate::making::{Packing, Tar, indexed};

/// Indexes a tar, checks that its files can be read and that the tar can be rebuilt, and returns
/// its entries.
fn entries(tar: Tar) -> Vec<Entry> {
    let tar = tar.finish();
    let blob = Packing::Gzip.pack(&tar);
    let index = indexed(&blob, &tar).unwrap();
    check(&tar, &Arc::clone(&blob), &index);
    index.entries().map(|entry| entry.unwrap()).collect()
}

fn file(bytes: &[u8]) -> Kind {
    Kind::File {
        content: FileDigest::of(bytes),
        size: bytes.len() as u64,
    }
}

#[test]
fn extended_headers_override_what_follows_and_nothing_behind() {
    let mut tar = Tar::new();
    let long = "long/".repeat(60) + "name";
    tar.pax(&[
        ("path", long.as_bytes()),
        ("uid", b"4000000000"),
        ("gid", b"3000000"),
        ("mtime", b"-1.5"),
        ("size", b"3"),
        ("SCHILY.xattr.user.b", b"2\n=\0"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
    ]);
    let header = Tar::header("short", b'0', 0);
    tar.raw(&header, b"abc");
    tar.file("next", b"");
    let entries = entries(tar);
    assert_eq!(
        entries[0],
        Entry {
            path: long.into_bytes(),
            kind: file(b"abc"),
            mode: 0o644,
            uid: 4_000_000_000,
            gid: 3_000_000,
            modified: Time {
                seconds: -2,
                nanos: 500_000_000
            },
            xattrs: vec![
                (b"security.capability".to_vec(), b"\x01\0\0\x02".to_vec()),
                (b"user.b".to_vec(), b"2\n=\0".to_vec()),
            ],
        }
    );
    assert_eq!(entries[1].path, b"next");
    assert_eq!((entries[1].uid, entries[1].xattrs.len()), (0, 0));
    assert_eq!(entries[1].modified.seconds, 1_700_000_000);
}

#[test]
fn long_names_of_gnu_and_prefixes_of_ustar() {
    let mut tar = Tar::new();
    let name = "n".repeat(200) + "/" + &"m".repeat(200);
    tar.entry("././@LongLink", b'L', format!("{name}\0").as_bytes());
    tar.entry("././@LongLink", b'K', format!("{name}\0").as_bytes());
    tar.symlink("short", "short");
    let mut header = Tar::header("base", b'5', 0);
    header.as_mut_bytes()[345..351].copy_from_slice(b"folder");
    header.set_cksum();
    tar.raw(&header, b"");
    let entries = entries(tar);
    assert_eq!(entries[0].path, name.as_bytes());
    let target = name.into_bytes();
    assert_eq!(entries[0].kind, Kind::Symlink { target });
    assert_eq!(entries[1].path, b"folder/base");
}

#[test]
fn devices_modes_and_old_headers() {
    let mut tar = Tar::new();
    let mut device = |name: &str, flag, major, minor| {
        let mut header = Tar::header(name, flag, 0);
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
        header.set_mode(0o140_6755);
        header.set_cksum();
        tar.raw(&header, b"");
    };
    device("null", b'3', 1, 3);
    device("sda", b'4', 8, 0);
    device("pipe", b'6', 0, 0);
    // In a header without a magic, a slash at the end of the name means a directory.
    let mut header = tar::Header::new_old();
    header.as_mut_bytes()[..4].copy_from_slice(b"old/");
    header.set_mode(0o700);
    header.set_size(0);
    header.set_cksum();
    header.as_mut_bytes()[156] = 0;
    header.set_cksum();
    tar.raw(&header, b"");
    let entries = entries(tar);
    let device = (entries[0].kind.clone(), entries[1].kind.clone());
    let expected = (
        Kind::CharDevice { major: 1, minor: 3 },
        Kind::BlockDevice { major: 8, minor: 0 },
    );
    assert_eq!(device, expected);
    assert_eq!(entries[2].kind, Kind::Fifo);
    assert_eq!(entries[2].mode, 0o6755);
    assert_eq!(
        (&entries[3].kind, &entries[3].path[..]),
        (&Kind::Directory, &b"old"[..])
    );
}

/// Returns a sparse file and its stored bytes: 1000 zeros, 600 bytes of data, zeros up to 5000, 400
/// bytes of data, zeros up to the end.
fn sparse() -> (Vec<u8>, Vec<u8>) {
    let mut whole = vec![0; 300_000];
    whole[1000..1600].fill(7);
    whole[5000..5400].fill(9);
    let stored = [&[7; 600][..], &[9; 400]].concat();
    (whole, stored)
}

#[test]
fn sparse_files_in_every_form() {
    let (whole, stored) = sparse();
    let mut tar = Tar::new();
    // The sparse format PAX 0.0, which has pairs of records.
    tar.pax(&[
        ("GNU.sparse.size", b"300000"),
        ("GNU.sparse.numblocks", b"2"),
        ("GNU.sparse.offset", b"1000"),
        ("GNU.sparse.numbytes", b"600"),
        ("GNU.sparse.offset", b"5000"),
        ("GNU.sparse.numbytes", b"400"),
    ]);
    tar.file("zero", &stored);
    // The sparse format PAX 0.1, which has one record.
    tar.pax(&[
        ("GNU.sparse.size", b"300000"),
        ("GNU.sparse.name", b"one"),
        ("GNU.sparse.map", b"1000,600,5000,400,300000,0"),
    ]);
    tar.file("GNUSparseFile.1/one", &stored);
    // The sparse format PAX 1.0, which has the map before the data.
    tar.pax(&[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"ten"),
        ("GNU.sparse.realsize", b"300000"),
    ]);
    let mut data = b"3\n1000\n600\n5000\n400\n300000\n0\n".to_vec();
    data.resize(512, 0);
    data.extend_from_slice(&stored);
    tar.file("GNUSparseFile.1/ten", &data);
    // The sparse format of GNU headers, which has four parts in the header, and more parts in a
    // block after the header.
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..3].copy_from_slice(b"gnu");
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(1000);
    header.set_entry_type(tar::EntryType::GNUSparse);
    let gnu = header.as_gnu_mut().unwrap();
    let parts = [
        (1000, 100),
        (1100, 200),
        (1300, 300),
        (5000, 100),
        (5100, 300),
    ];
    for (part, (offset, len)) in gnu.sparse.iter_mut().zip(parts) {
        part.set_offset(offset);
        part.set_length(len);
    }
    gnu.set_is_extended(true);
    gnu.set_real_size(300_000);
    header.set_cksum();
    let mut more = tar::GnuExtSparseHeader::new();
    more.sparse_mut()[0].set_offset(parts[4].0);
    more.sparse_mut()[0].set_length(parts[4].1);
    tar.raw(&header, &[more.as_bytes(), &stored[..]].concat());
    // This sparse file consists of one hole.
    tar.pax(&[("GNU.sparse.size", b"4096"), ("GNU.sparse.map", b"4096,0")]);
    tar.file("hole", b"");
    let entries = entries(tar);
    let names: Vec<_> = entries.iter().map(|entry| &entry.path[..]).collect();
    assert_eq!(names, [&b"zero"[..], b"one", b"ten", b"gnu", b"hole"]);
    for entry in &entries[..4] {
        assert_eq!(entry.kind, file(&whole), "{}", entry.path.escape_ascii());
    }
    assert_eq!(entries[4].kind, file(&[0; 4096]));
}

#[test]
fn odd_tars_are_made_again_to_the_byte() {
    let mut tar = Tar::new();
    // The padding of this file is not zero.
    tar.file("a", b"padded");
    let at = tar.0.len() - 3;
    tar.0[at] = b'!';
    // A header whose checksum has another form, and whose size is in base 256.
    let mut header = Tar::header("b", b'0', 0);
    header.as_mut_bytes()[124..136].copy_from_slice(b"\x80\0\0\0\0\0\0\0\0\0\x02\x01");
    header.set_cksum();
    let sum = header.cksum().unwrap();
    header.as_mut_bytes()[148..156].copy_from_slice(format!("{sum:07o}\0").as_bytes());
    tar.raw(&header, &[3; 513]);
    // A whiteout with data, and an opaque marker with data.
    tar.file("c/.wh.d", b"why");
    tar.file("c/.wh..wh..opq", b"not");
    // A global extended header, which is ignored.
    tar.entry("pax_global_header", b'g', b"16 path=ignored\n");
    tar.file("e", b"");
    // Appends entries and other bytes after the end mark.
    tar.0.extend_from_slice(&[0; 1024]);
    tar.file("after", b"the end");
    tar.0.extend_from_slice(&[0; 5000]);
    tar.0.extend_from_slice(b"junk");
    let entries = entries(tar);
    let found: Vec<_> = entries
        .iter()
        .map(|entry| (&entry.path[..], &entry.kind))
        .collect();
    let expected = [
        (&b"a"[..], &file(b"padded")),
        (b"b", &file(&[3; 513])),
        (b"c/d", &Kind::Whiteout),
        (b"c", &Kind::Opaque),
        (b"e", &file(b"")),
    ];
    assert_eq!(found, expected);
}
