//! Property tests with random tars: the index has the entries that the crate `tar` reads. Indexing
//! a damaged layer fails, or gives the correct index.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;

use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::{Entry, FileDigest, Kind};
use proptest::prelude::*;
use tar::EntryType;

use super::check;
use super::making::{Packing, indexed};

/// One member of a random tar.
#[derive(Clone, Debug)]
struct Member {
    path: String,
    kind: MemberKind,
    mode: u32,
    owner: (u64, u64),
    modified: u64,
}

#[derive(Clone, Debug)]
enum MemberKind {
    Directory,
    File(Vec<u8>),
    Symlink(String),
    HardLink(String),
    Device(EntryType, u32, u32),
}

/// Generates clean relative paths. A path of more than 100 bytes needs an extension header in the
/// tar.
fn path() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z]{1,8}(/[a-z.]{0,5}[a-z]){0,3}", 1 => "[a-z]{90,120}/[a-z]{90,200}"]
}

fn member() -> impl Strategy<Value = Member> {
    let kind = prop_oneof![
        2 => Just(MemberKind::Directory),
        6 => proptest::collection::vec(any::<u8>(), 0..3000).prop_map(MemberKind::File),
        1 => path().prop_map(MemberKind::Symlink),
        1 => path().prop_map(MemberKind::HardLink),
        1 => (
            prop::sample::select(vec![EntryType::Char, EntryType::Block, EntryType::Fifo]),
            0..0x1000_u32,
            0..0x1000_u32,
        )
            .prop_map(|(kind, major, minor)| MemberKind::Device(kind, major, minor)),
    ];
    let owner = (0..2_000_000_u64, 0..2_000_000_u64);
    (path(), kind, 0..0o10000_u32, owner, 0..4_000_000_000_u64).prop_map(
        |(path, kind, mode, owner, modified)| Member {
            path,
            kind,
            mode,
            owner,
            modified,
        },
    )
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    proptest::collection::vec(member(), 0..12)
}

/// Writes a tar with the crate `tar`, which uses GNU extension headers for long names.
fn write(members: &[Member]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for member in members {
        let mut header = tar::Header::new_gnu();
        header.set_mode(member.mode);
        header.set_uid(member.owner.0);
        header.set_gid(member.owner.1);
        header.set_mtime(member.modified);
        header.set_size(0);
        let path = &member.path;
        match &member.kind {
            MemberKind::Directory => {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, path, &[][..])
            }
            MemberKind::File(bytes) => {
                header.set_size(bytes.len() as u64);
                builder.append_data(&mut header, path, &bytes[..])
            }
            MemberKind::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                builder.append_link(&mut header, path, target)
            }
            MemberKind::HardLink(target) => {
                header.set_entry_type(EntryType::Link);
                builder.append_link(&mut header, path, target)
            }
            MemberKind::Device(kind, major, minor) => {
                header.set_entry_type(*kind);
                header.set_device_major(*major).unwrap();
                header.set_device_minor(*minor).unwrap();
                builder.append_data(&mut header, path, &[][..])
            }
        }
        .unwrap();
    }
    builder.into_inner().unwrap()
}

/// Reads a tar with the crate `tar`. Returns path, mode, owner, group, time and kind of each
/// member.
fn read(bytes: &[u8]) -> Vec<(Vec<u8>, [u64; 4], Kind)> {
    let mut archive = tar::Archive::new(bytes);
    let members = archive.entries().unwrap().map(|member| {
        let mut member = member.unwrap();
        let path = member.path_bytes().into_owned();
        let target = member.link_name().unwrap();
        let target = target.map(|target| target.as_os_str().as_bytes().to_vec());
        let header = member.header().clone();
        // Members that are not devices have no numbers in these fields.
        let major = header.device_major().ok().flatten().unwrap_or(0);
        let minor = header.device_minor().ok().flatten().unwrap_or(0);
        let kind = match header.entry_type() {
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink {
                target: target.unwrap(),
            },
            EntryType::Link => Kind::HardLink {
                target: target.unwrap(),
            },
            EntryType::Char => Kind::CharDevice { major, minor },
            EntryType::Block => Kind::BlockDevice { major, minor },
            EntryType::Fifo => Kind::Fifo,
            _ => {
                let mut content = Vec::new();
                member.read_to_end(&mut content).unwrap();
                Kind::File {
                    size: content.len() as u64,
                    content: FileDigest::of(&content),
                }
            }
        };
        let numbers = [
            header.mode().unwrap().into(),
            header.uid().unwrap(),
            header.gid().unwrap(),
            header.mtime().unwrap(),
        ];
        (path, numbers, kind)
    });
    members.collect()
}

/// Returns the numbers of an entry of the index, in the same order in which [`read`] returns them.
fn numbers(entry: &Entry) -> [u64; 4] {
    assert_eq!(entry.modified.nanos, 0);
    [
        entry.mode.into(),
        entry.uid.into(),
        entry.gid.into(),
        entry.modified.seconds.cast_unsigned(),
    ]
}

fn packing() -> impl Strategy<Value = Packing> {
    prop::sample::select(&Packing::ALL[..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_index_has_the_entries_that_another_reader_finds(members in members(), packing in packing()) {
        let tar = write(&members);
        let blob = packing.pack(&tar);
        let index = indexed(&blob, &tar).unwrap();
        check(&tar, &blob, &index);
        let found = index.entries().map(|entry| {
            let entry = entry.unwrap();
            (entry.path.clone(), numbers(&entry), entry.kind)
        });
        let found: Vec<_> = found.collect();
        prop_assert_eq!(found, read(&tar));
        prop_assert_eq!(index.entry_count(), members.len() as u64);
    }

    #[test]
    fn a_changed_tar_is_an_error_or_is_rebuilt_exactly(
        members in members(),
        place in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut tar = write(&members);
        let place = place.index(tar.len());
        tar[place] = value;
        let blob = Packing::Gzip.pack(&tar);
        if let Ok(index) = indexed(&blob, &tar) {
            check(&tar, &blob, &index);
        }
    }

    #[test]
    fn a_changed_layer_is_never_indexed(
        members in members(),
        packing in packing(),
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let tar = write(&members);
        let mut bytes = packing.pack(&tar).0.clone();
        let place = place.index(bytes.len());
        bytes[place] ^= change;
        // Some bytes of the gzip header have no effect. If the damaged byte is one of these, the
        // index must be correct.
        if let Ok(index) = indexed(&MemoryBlob(bytes), &tar) {
            let found = index.entries().map(|entry| entry.unwrap().kind);
            prop_assert!(found.eq(read(&tar).into_iter().map(|(_, _, kind)| kind)));
        }
    }

    #[test]
    fn a_shortened_layer_is_never_indexed(
        members in members(),
        packing in packing(),
        cut in any::<prop::sample::Index>(),
    ) {
        let tar = write(&members);
        let bytes = &packing.pack(&tar).0;
        let bytes = bytes[..cut.index(bytes.len())].to_vec();
        let is_indexed = indexed(&MemoryBlob(bytes.clone()), &tar).is_ok();
        prop_assert!(!is_indexed, "{} bytes", bytes.len());
    }

    #[test]
    fn random_bytes_are_no_layer(bytes in proptest::collection::vec(any::<u8>(), 1..2000)) {
        prop_assert!(indexed(&MemoryBlob(bytes.clone()), &bytes).is_err());
    }
}
