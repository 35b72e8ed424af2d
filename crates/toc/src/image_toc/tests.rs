//! Unit tests of the table of contents (TOC): merging of layers, the canonical form, TOC files, and
//! refused input.

use super::*;
use crate::{Kind, Time};

fn entry(path: &str, kind: Kind) -> Entry {
    Entry {
        path: path.as_bytes().to_vec(),
        mode: if matches!(kind, Kind::Directory) {
            0o755
        } else {
            0o644
        },
        kind,
        uid: 0,
        gid: 0,
        modified: Time {
            seconds: 1_700_000_000,
            nanos: 0,
        },
        xattrs: Vec::new(),
    }
}

fn dir(path: &str) -> Entry {
    entry(path, Kind::Directory)
}

fn file(path: &str, text: &str) -> Entry {
    let content = FileDigest::of(text.as_bytes());
    let size = text.len() as u64;
    entry(path, Kind::File { content, size })
}

fn link(path: &str, target: &str) -> Entry {
    let target = target.as_bytes().to_vec();
    entry(path, Kind::HardLink { target })
}

fn symlink(path: &str, target: &str) -> Entry {
    let target = target.as_bytes().to_vec();
    entry(path, Kind::Symlink { target })
}

fn gone(path: &str) -> Entry {
    entry(path, Kind::Whiteout)
}

fn opaque(path: &str) -> Entry {
    entry(path, Kind::Opaque)
}

fn merge(layers: &[&[Entry]]) -> Result<ImageToc, Error> {
    ImageToc::merge((0_u8..).zip(layers).map(|(nth, entries)| LayerEntries {
        diff_id: FileDigest::of(&[nth]).into(),
        skeleton: (FileDigest::of(&[nth, nth]), 7),
        files: entries.iter().filter_map(|entry| match entry.kind {
            Kind::File { content, size } => Some(Ok((content, size))),
            _ => None,
        }),
        entries: entries.iter().cloned().map(Ok),
    }))
}

/// Merges layers, and lists all entries except the root: one line with path and kind per entry.
fn tree(layers: &[&[Entry]]) -> Vec<String> {
    let toc = merge(layers).expect("layers that can be merged");
    let again = ImageToc::parse(toc.bytes().to_vec()).expect("what was built is canonical");
    assert_eq!(again.bytes(), toc.bytes());
    lines(&toc)
}

fn lines(toc: &ImageToc) -> Vec<String> {
    let names: Vec<(FileDigest, &str)> = ["old", "new", "other", ""]
        .iter()
        .map(|text| (FileDigest::of(text.as_bytes()), *text))
        .collect();
    let mut paths: Vec<String> = Vec::new();
    let mut lines = Vec::new();
    let mut rows = toc.rows();
    while let Some(row) = rows.next().expect("a sound table") {
        let path = String::from_utf8_lossy(row.path).into_owned();
        let what = match row.node {
            Node::Directory if row.attributes.mode == 0o755 => "/".to_owned(),
            Node::Directory => format!("/ {:o}", row.attributes.mode),
            Node::File(number) => {
                let content = toc
                    .contents()
                    .content(number)
                    .expect("a number of a content");
                let known = names.iter().find(|name| name.0 == content);
                format!("={}", known.map_or("?", |known| known.1))
            }
            Node::Symlink(target) => format!("->{}", String::from_utf8_lossy(target)),
            Node::HardLink(to) => format!("=>{}", paths[to as usize]),
            Node::CharDevice(major, minor) => format!(" c {major} {minor}"),
            Node::BlockDevice(major, minor) => format!(" b {major} {minor}"),
            Node::Fifo => "|".to_owned(),
        };
        if row.ordinal > 0 {
            lines.push(format!("{path}{what}"));
        }
        paths.push(path);
    }
    lines
}

#[test]
fn entries_come_in_the_order_of_their_components() {
    let layer = [
        file("a.b", "old"),
        file("a-b", "old"),
        dir("a"),
        file("a/z", "new"),
        file("b", "other"),
        file("a/b/c", "old"),
    ];
    let expected = [
        "a/",
        "a/b/",
        "a/b/c=old",
        "a/z=new",
        "a-b=old",
        "a.b=old",
        "b=other",
    ];
    assert_eq!(tree(&[&layer]), expected);
    assert_eq!(compare(b"a/z", b"a-b"), Ordering::Less);
    assert_eq!(compare(b"a", b"a/z"), Ordering::Less);
    assert_eq!(compare(b"a/z", b"a/z"), Ordering::Equal);
}

#[test]
fn a_whiteout_hides_lower_layers_only() {
    let lower = [
        dir("d"),
        file("d/old", "old"),
        file("d/e/f", "old"),
        file("x", "old"),
    ];
    let upper = [
        file("x", "new"),
        gone("x"),
        file("d/e/g", "new"),
        gone("d"),
        gone("not/there"),
    ];
    assert_eq!(
        tree(&[&lower, &upper]),
        ["d/", "d/e/", "d/e/g=new", "x=new"]
    );
    let before = [gone("d"), file("d/e/g", "new")];
    assert_eq!(
        tree(&[&lower, &before]),
        ["d/", "d/e/", "d/e/g=new", "x=old"]
    );
    assert_eq!(tree(&[&lower, &[gone("d")]]), ["x=old"]);
}

#[test]
fn an_opaque_directory_hides_what_lower_layers_have_in_it() {
    let lower = [
        dir("d"),
        file("d/old", "old"),
        file("d/e/f", "old"),
        file("x", "old"),
    ];
    for first in [true, false] {
        let mut upper = vec![dir("d"), file("d/e/g", "new")];
        upper.insert(if first { 1 } else { 2 }, opaque("d"));
        assert_eq!(
            tree(&[&lower, &upper]),
            ["d/", "d/e/", "d/e/g=new", "x=old"]
        );
    }
    let all = [opaque("")];
    assert_eq!(tree(&[&lower, &all]), Vec::<String>::new());
    assert_eq!(tree(&[&lower, &[opaque("x"), opaque("nothing")]]).len(), 5);
}

#[test]
fn what_is_replaced_goes_but_a_directory_keeps_what_is_in_it() {
    let lower = [file("d/old", "old"), file("f", "old"), symlink("l", "d")];
    let mut changed = dir("d");
    changed.mode = 0o700;
    let same = [changed, dir("f"), dir("l"), file("l/x", "new")];
    let expected = ["d/ 700", "d/old=old", "f/", "l/", "l/x=new"];
    assert_eq!(tree(&[&lower, &same]), expected);
    let over = [file("d", "new"), symlink("f", "d")];
    assert_eq!(tree(&[&lower, &over]), ["d=new", "f->d", "l->d"]);
    // A folder replaces a file of a lower layer. A file and a folder at the same path of one layer
    // are an error.
    assert_eq!(
        tree(&[&lower, &[file("f/x", "new")]])[2..4],
        ["f/", "f/x=new"]
    );
    assert!(merge(&[&[file("f", "old"), file("f/x", "new")]]).is_err());
}

#[test]
fn the_folder_of_an_entry_is_found_through_links_and_never_out_of_the_root() {
    let lower = [
        dir("usr/lib"),
        symlink("lib", "usr/lib"),
        symlink("up", "../../../../usr"),
        symlink("abs", "/usr/./lib/"),
        symlink("to-be", "made/here"),
    ];
    let upper = [
        file("lib/a", "old"),
        file("up/b", "old"),
        file("abs/c", "new"),
        file("to-be/d", "other"),
    ];
    let tree = tree(&[&lower, &upper]);
    let expected = [
        "abs->/usr/./lib/",
        "lib->usr/lib",
        "made/",
        "made/here/",
        "made/here/d=other",
        "to-be->made/here",
        "up->../../../../usr",
        "usr/",
        "usr/b=old",
        "usr/lib/",
        "usr/lib/a=old",
        "usr/lib/c=new",
    ];
    assert_eq!(tree, expected);
    // An absolute symbolic link starts at the root, in whatever folder the link is.
    let deep = [symlink("x/abs", "/y"), file("x/abs/f", "new")];
    let expected = ["x/", "x/abs->/y", "y/", "y/f=new"];
    assert_eq!(self::tree(&[&deep]), expected);
    let circle = [symlink("a", "b"), symlink("b", "a"), file("a/x", "old")];
    assert!(merge(&[&circle]).is_err());
}

#[test]
fn a_hard_link_keeps_what_its_target_was() {
    let lower = [file("b", "old"), file("z", "other")];
    let upper = [link("a", "b"), file("b", "new"), link("y", "z"), gone("z")];
    assert_eq!(tree(&[&lower, &upper]), ["a=old", "b=new", "y=other"]);
    // Of several hard-linked names, the first name in path order has the content. The other names
    // are hard links to this first name.
    let first = [link("a", "b"), link("c", "a")];
    assert_eq!(tree(&[&lower, &first])[..3], ["a=old", "b=>a", "c=>a"]);
    // A hard link may also lead to a symbolic link itself, and to a device.
    let null = Kind::CharDevice { major: 1, minor: 3 };
    let odd = [
        symlink("s", "b"),
        link("t", "s"),
        entry("m", null),
        link("n", "m"),
    ];
    assert_eq!(tree(&[&odd]), ["m c 1 3", "n=>m", "s->b", "t=>s"]);
    assert!(merge(&[&[link("a", "nothing")]]).is_err());
    assert!(merge(&[&[dir("d"), link("a", "d")]]).is_err());
}

#[test]
fn the_last_of_two_entries_counts_and_the_root_has_one_too() {
    let mut root = dir("");
    root.mode = 0o711;
    root.uid = 7;
    let toc = merge(&[&[file("a", "old"), root, file("a", "new")]]).expect("merged");
    assert_eq!(lines(&toc), ["a=new"]);
    let mut rows = toc.rows();
    let row = rows.next().expect("sound").expect("the root");
    assert_eq!(
        (row.path, row.attributes.mode, row.attributes.uid),
        (&b""[..], 0o711, 7)
    );
    assert!(merge(&[&[file("", "old")]]).is_err());
    // The tree of an image without layers has only the root.
    assert_eq!(tree(&[]), Vec::<String>::new());
}

#[test]
fn contents_are_numbered_by_use_and_what_layers_need_besides_comes_last() {
    let lower = [file("a", "old"), file("b", "other"), file("c", "old")];
    let upper = [gone("b"), file("d", "new")];
    let toc = merge(&[&lower, &upper]).expect("merged");
    let named: Vec<FileDigest> = toc.contents().iter().map(|(content, _)| content).collect();
    let of = |text: &str| FileDigest::of(text.as_bytes());
    let expected = [
        of("old"),
        of("new"),
        FileDigest::of(&[0, 0]),
        of("other"),
        FileDigest::of(&[1, 1]),
    ];
    assert_eq!(named, expected);
    assert_eq!(toc.visible(), 2);
    let layers: Vec<TocLayer> = toc.layers().collect::<Result<_, _>>().expect("layers");
    assert_eq!(
        (layers[0].skeleton, &layers[0].files[..]),
        (2, &[0, 3, 0][..])
    );
    assert_eq!((layers[1].skeleton, &layers[1].files[..]), (4, &[1][..]));
    assert_eq!(layers[1].diff_id, FileDigest::of(&[1]));
    for (number, content) in (0..).zip(expected) {
        assert_eq!(toc.find(&content), Some(number));
    }
    assert_eq!(toc.find(&of("nothing")), None);
    assert!(
        merge(&[&[
            file("a", "old"),
            entry(
                "b",
                Kind::File {
                    content: of("old"),
                    size: 99
                }
            )
        ]])
        .is_err()
    );
}

fn sample() -> ImageToc {
    let mut special = file("usr/bin/ping", "other");
    special.mode = 0o4755;
    special.xattrs = vec![
        (b"security.capability".to_vec(), vec![1, 0, 0, 2]),
        (b"user.x".to_vec(), Vec::new()),
    ];
    special.modified = Time {
        seconds: -5,
        nanos: 999_999_999,
    };
    let mut owned = dir("home/me");
    (owned.uid, owned.gid) = (u32::MAX, 1000);
    let lower = [
        dir("usr"),
        special,
        owned,
        entry("dev/null", Kind::CharDevice { major: 1, minor: 3 }),
        entry("dev/sda", Kind::BlockDevice { major: 8, minor: 0 }),
        entry("run/pipe", Kind::Fifo),
        symlink("bin", "usr/bin"),
        file("b", "old"),
        link("a", "b"),
    ];
    let upper = [
        gone("b"),
        file("usr/share/x", "new"),
        file("usr/share/y", ""),
    ];
    merge(&[&lower, &upper]).expect("merged")
}

#[test]
fn everything_of_an_entry_comes_back() {
    let toc = sample();
    let mut rows = toc.rows();
    let mut found = None;
    while let Some(row) = rows.next().expect("sound") {
        if row.path == b"usr/bin/ping" {
            found = row.to_entry(&toc.contents(), b"");
        }
    }
    let found = found.expect("it is there");
    assert_eq!(found.mode, 0o4755);
    assert_eq!(found.xattrs.len(), 2);
    assert_eq!(
        (found.modified.seconds, found.modified.nanos),
        (-5, 999_999_999)
    );
    assert!(matches!(found.kind, Kind::File { size: 5, .. }));
}

#[test]
fn a_table_is_saved_and_opened_and_damage_is_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("table");
    let toc = sample();
    assert!(matches!(ImageToc::open(&path), Err(Error::Missing(_))));
    toc.save(&path).expect("saved");
    let opened = ImageToc::open(&path).expect("opened");
    assert_eq!(opened.bytes(), toc.bytes());
    assert_eq!(lines(&opened), lines(&toc));
    for number in 0..toc.contents().len() {
        let content = toc.contents().content(number).expect("a content");
        assert_eq!(opened.contents().size(number), toc.contents().size(number));
        assert_eq!(opened.find(&content), Some(number));
    }
    let bytes = std::fs::read(&path).expect("read");
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&path, &damaged).expect("written");
        assert!(
            matches!(ImageToc::open(&path), Err(Error::Malformed { .. })),
            "{at}"
        );
        std::fs::write(&path, &bytes[..at]).expect("written");
        assert!(ImageToc::open(&path).is_err(), "{at}");
    }
}

#[test]
fn a_table_outlives_the_truncation_of_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("table");
    let toc = sample();
    toc.save(&path).expect("saved");
    let opened = ImageToc::open(&path).expect("opened");
    let file = std::fs::File::options().write(true).open(&path);
    file.expect("there").set_len(0).expect("truncated");
    // The TOC was read into memory. With a memory mapping of the truncated file, this read would
    // kill the process (SIGBUS).
    assert_eq!(lines(&opened), lines(&toc));
    assert!(matches!(
        ImageToc::open(&path),
        Err(Error::Malformed { .. })
    ));
}

#[test]
fn a_table_travels_alone_or_against_another() {
    let old = sample();
    let new = merge(&[&[file("a", "new")]]).expect("merged");
    for base in [None, Some(&old)] {
        let frame = compress(&new, base, 3).expect("encoded");
        assert_eq!(
            decompress(&frame, base).expect("decoded").bytes(),
            new.bytes()
        );
        let more = [&frame[..], b"x"].concat();
        assert!(decompress(&more, base).is_err());
        assert!(decompress(&frame[..frame.len() - 1], base).is_err());
    }
    let same = compress(&old, Some(&old), 3).expect("encoded");
    assert!(same.len() < 40, "{}", same.len());
    assert!(decompress(&same, None).is_err());
}

#[test]
fn whatever_is_changed_is_refused_or_canonical() {
    let bytes = sample().bytes().to_vec();
    for at in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            crate::fuzzing::toc(&changed);
        }
        assert!(ImageToc::parse(bytes[..at].to_vec()).is_err());
    }
    assert!(ImageToc::parse([&bytes[..], b"x"].concat()).is_err());
}

#[test]
fn a_link_to_a_directory_or_to_a_link_is_refused() {
    let toc = merge(&[&[file("a", "old"), link("b", "a"), link("c", "a")]]).expect("merged");
    let bytes = toc.bytes();
    let layout = Layout::read(bytes, bytes.len()).expect("a head");
    let end = layout.nodes(bytes).as_ptr_range().end as usize - bytes.as_ptr() as usize;
    // The last number in the section is the distance from `c` to the target of the hard link. With
    // the distance 1, the target would be `b`, and with the distance 3, it would be the root.
    assert_eq!(bytes[end - 1], 2);
    for distance in [1, 3] {
        let mut changed = bytes.to_vec();
        changed[end - 1] = distance;
        assert!(ImageToc::parse(changed).is_err(), "{distance}");
    }
}

#[test]
fn no_more_attributes_than_entries() {
    let layout = |attribute_count| layout::Layout {
        entries: 1,
        attribute_count,
        lengths: [1000, 0, 1, 0, 0],
        ..layout::Layout::default()
    };
    let read = |attribute_count| {
        let mut bytes = layout(attribute_count).write();
        bytes.resize(bytes.len() + 1001, 0);
        layout::Layout::read(&bytes, bytes.len())
    };
    assert!(read(1).is_ok());
    assert!(matches!(read(2), Err(Error::Malformed { .. })));
}

#[test]
fn attributes_of_many_mebibytes_are_refused() {
    let entries = |count: u16| {
        let of = |nth: u16| {
            let mut file = file(&nth.to_string(), "x");
            let value = nth.to_le_bytes().repeat(30_000);
            file.xattrs = vec![(b"user.a".to_vec(), value)];
            Ok(file)
        };
        ImageToc::merge([LayerEntries {
            diff_id: FileDigest::of(b"layer").into(),
            skeleton: (FileDigest::of(b"skeleton"), 7),
            files: [],
            entries: (0..count).map(of),
        }])
    };
    assert!(entries(10).is_ok());
    assert!(matches!(entries(1200), Err(Error::Image(_))));
}

#[test]
fn directories_count_by_the_memory_that_they_take() {
    let chains = |count: u32| {
        let of = |nth: u32| Ok(file(&format!("{nth}{}/x", "/d".repeat(100)), ""));
        ImageToc::merge([LayerEntries {
            diff_id: FileDigest::of(b"layer").into(),
            skeleton: (FileDigest::of(b"skeleton"), 7),
            files: [],
            entries: (0..count).map(of),
        }])
    };
    assert!(chains(100).is_ok());
    // The memory limit refuses these directories, although they are only a quarter of the maximum
    // number of entries.
    assert!(matches!(chains(2700), Err(Error::Image(_))));
}
