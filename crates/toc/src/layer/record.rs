//! Encodes and decodes the record of an entry in a layer index. The path in a record is relative to
//! the previous path.

use serde::{Deserialize, Serialize};

use crate::{Entry, Error, FileDigest, Kind, Time};

use super::blocks::bug;

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    /// Number of bytes that the path has in common with the previous path in the same block.
    shared: u32,
    #[serde(borrow)]
    rest: &'a [u8],
    #[serde(borrow)]
    kind: Stored<'a>,
    mode: u32,
    uid: u32,
    gid: u32,
    seconds: i64,
    nanos: u32,
    #[serde(borrow)]
    xattrs: Vec<(&'a [u8], &'a [u8])>,
}

#[derive(Serialize, Deserialize)]
enum Stored<'a> {
    Directory,
    File {
        content: [u8; 32],
        size: u64,
    },
    Symlink(#[serde(borrow)] &'a [u8]),
    HardLink(#[serde(borrow)] &'a [u8]),
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
    Fifo,
    Whiteout,
    Opaque,
    /// A file of the tar that is not an entry of the tree, such as a file whose path is the root.
    /// The file is needed to rebuild the tar.
    Unseen {
        content: [u8; 32],
        size: u64,
    },
}

/// An entry of the tree, or a file of the tar that is not an entry of the tree.
pub(super) enum Item {
    Entry(Entry),
    Unseen(FileDigest, u64),
}

/// Returns the length of the common prefix of two paths.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Appends an entry to `out`. `before` is the previous path in the block, or empty at the start of
/// the block.
pub(super) fn encode(entry: &Entry, before: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let shared = common(&entry.path, before);
    let kind = match &entry.kind {
        Kind::Directory => Stored::Directory,
        Kind::File { content, size } => Stored::File {
            content: *content.as_bytes(),
            size: *size,
        },
        Kind::Symlink { target } => Stored::Symlink(target),
        Kind::HardLink { target } => Stored::HardLink(target),
        Kind::CharDevice { major, minor } => Stored::CharDevice(*major, *minor),
        Kind::BlockDevice { major, minor } => Stored::BlockDevice(*major, *minor),
        Kind::Fifo => Stored::Fifo,
        Kind::Whiteout => Stored::Whiteout,
        Kind::Opaque => Stored::Opaque,
    };
    let record = Record {
        shared: u32::try_from(shared).unwrap_or(0),
        rest: &entry.path[shared..],
        kind,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        seconds: entry.modified.seconds,
        nanos: entry.modified.nanos,
        xattrs: entry
            .xattrs
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
            .collect(),
    };
    append(&record, out)
}

/// Appends a file that is not an entry of the tree.
pub(super) fn encode_unseen(
    content: FileDigest,
    size: u64,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let record = Record {
        shared: 0,
        rest: &[],
        kind: Stored::Unseen {
            content: *content.as_bytes(),
            size,
        },
        mode: 0,
        uid: 0,
        gid: 0,
        seconds: 0,
        nanos: 0,
        xattrs: Vec::new(),
    };
    append(&record, out)
}

fn append(record: &Record<'_>, out: &mut Vec<u8>) -> Result<(), Error> {
    let bytes = postcard::to_stdvec(record).map_err(bug)?;
    out.extend_from_slice(&bytes);
    Ok(())
}

/// Takes the next item from `bytes`. `path` has the previous path, and gets the path of this item.
pub(super) fn decode(bytes: &mut &[u8], path: &mut Vec<u8>) -> Result<Item, Error> {
    let (record, rest) = postcard::take_from_bytes::<Record<'_>>(bytes).map_err(bug)?;
    *bytes = rest;
    let kind = match record.kind {
        Stored::Directory => Kind::Directory,
        Stored::File { content, size } => Kind::File {
            content: FileDigest::from_bytes(content),
            size,
        },
        Stored::Symlink(target) => Kind::Symlink {
            target: target.to_vec(),
        },
        Stored::HardLink(target) => Kind::HardLink {
            target: target.to_vec(),
        },
        Stored::CharDevice(major, minor) => Kind::CharDevice { major, minor },
        Stored::BlockDevice(major, minor) => Kind::BlockDevice { major, minor },
        Stored::Fifo => Kind::Fifo,
        Stored::Whiteout => Kind::Whiteout,
        Stored::Opaque => Kind::Opaque,
        Stored::Unseen { content, size } => {
            return Ok(Item::Unseen(FileDigest::from_bytes(content), size));
        }
    };
    path.truncate(record.shared as usize);
    path.extend_from_slice(record.rest);
    Ok(Item::Entry(Entry {
        path: path.clone(),
        kind,
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        modified: Time {
            seconds: record.seconds,
            nanos: record.nanos,
        },
        xattrs: record
            .xattrs
            .into_iter()
            .map(|(name, value)| (name.to_vec(), value.to_vec()))
            .collect(),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind() -> impl Strategy<Value = Kind> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        prop_oneof![
            Just(Kind::Directory),
            Just(Kind::Fifo),
            Just(Kind::Whiteout),
            Just(Kind::Opaque),
            (any::<[u8; 32]>(), any::<u64>()).prop_map(|(content, size)| Kind::File {
                content: FileDigest::from_bytes(content),
                size,
            }),
            bytes().prop_map(|target| Kind::Symlink { target }),
            bytes().prop_map(|target| Kind::HardLink { target }),
            any::<(u32, u32)>().prop_map(|(major, minor)| Kind::CharDevice { major, minor }),
            any::<(u32, u32)>().prop_map(|(major, minor)| Kind::BlockDevice { major, minor }),
        ]
    }

    prop_compose! {
        fn entry()(
            path in "[ab/]{0,12}",
            kind in kind(),
            (mode, uid, gid) in any::<(u32, u32, u32)>(),
            (seconds, nanos) in any::<(i64, u32)>(),
            xattrs in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..9), proptest::collection::vec(any::<u8>(), 0..9)),
                0..3,
            ),
        ) -> Entry {
            let path = path.into_bytes();
            Entry { path, kind, mode, uid, gid, modified: Time { seconds, nanos }, xattrs }
        }
    }

    proptest! {
        /// The paths of entries are relative to each other; a file that is no entry changes none.
        #[test]
        fn decoding_reverses_encoding(entries in proptest::collection::vec(entry(), 1..8), cut in any::<u16>()) {
            let (mut out, mut before) = (Vec::new(), Vec::new());
            for entry in &entries {
                encode(entry, &before, &mut out).unwrap();
                encode_unseen(FileDigest::of(b"x"), 9, &mut out).unwrap();
                before.clone_from(&entry.path);
            }
            let (mut rest, mut path) = (&out[..], Vec::new());
            for entry in &entries {
                match decode(&mut rest, &mut path).unwrap() {
                    Item::Entry(found) => prop_assert_eq!(&found, entry),
                    Item::Unseen(..) => prop_assert!(false, "an entry became a file"),
                }
                match decode(&mut rest, &mut path).unwrap() {
                    Item::Unseen(content, size) => {
                        prop_assert_eq!((content, size), (FileDigest::of(b"x"), 9));
                    }
                    Item::Entry(_) => prop_assert!(false, "a file became an entry"),
                }
            }
            prop_assert!(rest.is_empty());
            // Bytes that end too early are an error at the last record.
            let cut = usize::from(cut) % out.len();
            let (mut rest, mut path) = (&out[..cut], Vec::new());
            let complete = std::iter::from_fn(|| decode(&mut rest, &mut path).ok()).count();
            prop_assert!(complete < 2 * entries.len());
        }
    }
}
