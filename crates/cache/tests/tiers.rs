//! Tests that the disk tier and the simulated tiers pass the conformance suite of tiers, that
//! trailers (checksums after the content) can be decoded again and detect damage, and that an
//! interrupted commit is resumed.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::io;

use pierhead_cache::Origin;
use pierhead_cache::tier::{CHUNK, DiskTier, Tier, Trailer};
use pierhead_oci::{Algorithm, Digest, MediaType};
use pierhead_testkit::tier::{Faulty, MemoryTier, conforms_as_fast_medium};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

#[test]
fn the_disk_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    let at = |count: u32| DiskTier::new(&folder.path().join(count.to_string())).unwrap();
    conforms_as_fast_medium(
        || {
            count.set(count.get() + 1);
            at(count.get())
        },
        |_| at(count.get()),
    );
}

#[test]
fn freshly_written_bytes_are_read_without_waiting() {
    // The second folder is in memory on every Linux.
    for folder in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")] {
        let folder = folder.unwrap();
        let tier = DiskTier::new(folder.path()).unwrap();
        let digest = Digest::of(Algorithm::Sha256, b"any");
        let mut staged = tier.stage(&digest).unwrap();
        let content = vec![7; CHUNK];
        staged.write(&[&content]).unwrap();
        let mut read = vec![0; CHUNK];
        assert_eq!(staged.reader().try_read_at(0, &mut read).unwrap(), CHUNK);
        assert_eq!(read, content);
    }
}

#[test]
fn memory_conforms() {
    conforms_as_fast_medium(MemoryTier::default, |tier| tier);
}

#[test]
fn a_faulty_tier_without_faults_conforms() {
    conforms_as_fast_medium(
        || Faulty::new(std::sync::Arc::new(MemoryTier::default())),
        |tier| tier,
    );
}

fn decode(digest: &Digest, file: &[u8]) -> io::Result<Trailer> {
    Trailer::decode(digest, file.len() as u64, |offset, buf| {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let found = file.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    })
}

/// Returns an origin, or none for the empty name.
fn origin(name: &str) -> Origin {
    match name {
        "" => Origin::LOCAL,
        name => Origin::of(&name.parse().unwrap()).in_repository(&"app".parse().unwrap()),
    }
}

proptest! {
    #[test]
    fn trailers_survive_a_round_trip(
        content in vec(any::<u8>(), 0..200_000),
        media in "[ -~]{0,255}",
        name in "([a-z]{1,9}[.]example)?",
    ) {
        let digest = Digest::of(Algorithm::Sha512, &content);
        let trailer = Trailer::of(&content, MediaType::new(&media)).with_origin(origin(&name));
        let mut file = content.clone();
        file.extend_from_slice(&trailer.encode(&digest));
        prop_assert_eq!(&decode(&digest, &file).unwrap(), &trailer);
        let other = Digest::of(Algorithm::Sha512, b"another");
        prop_assert!(decode(&other, &file).is_err());
    }

    #[test]
    fn every_damage_to_a_trailer_is_detected(
        len in 0..150_000usize,
        at in any::<Index>(),
        change in 1..=255u8,
        cut in 0..100usize,
        name in "(one[.]example)?",
    ) {
        let content = vec![7; len];
        let digest = Digest::of(Algorithm::Sha256, &content);
        let mut file = content;
        let trailer = Trailer::of(&file, MediaType::new("text/plain")).with_origin(origin(&name));
        file.extend_from_slice(&trailer.encode(&digest));
        let mut changed = file.clone();
        changed[len + at.index(file.len() - len)] ^= change;
        prop_assert!(decode(&digest, &changed).is_err());
        file.truncate(file.len() - 1 - cut.min(file.len() - 1));
        prop_assert!(decode(&digest, &file).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_refused(mut file in vec(any::<u8>(), 0..200), size in any::<u64>(), count in any::<u32>()) {
        let digest = Digest::of(Algorithm::Sha256, b"");
        prop_assert!(decode(&digest, &file).is_err());
        // The appended lengths make a file that is nearly valid, but that states wrong lengths.
        file.extend_from_slice(&size.to_le_bytes());
        file.extend_from_slice(&65_536u32.to_le_bytes());
        file.extend_from_slice(&count.to_le_bytes());
        file.extend_from_slice(&[0, 0, 1, 0, 1, 2, 3, 4]);
        file.extend_from_slice(b"PIERBLOB");
        prop_assert!(decode(&digest, &file).is_err());
    }
}

#[test]
fn a_commit_that_crashed_before_its_rename_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let tier = DiskTier::new(folder.path()).unwrap();
    let content = vec![3; 2 * CHUNK];
    let digest = Digest::of(Algorithm::Sha256, &content);
    let mut file = content.clone();
    file.extend_from_slice(&Trailer::of(&content, None).encode(&digest));
    let path = folder
        .path()
        .join("staging")
        .join(format!("sha256-{}", digest.hex()));
    std::fs::write(path, file).unwrap();
    let staged = tier.stage(&digest).unwrap();
    assert_eq!(
        staged.size(),
        CHUNK as u64,
        "less than the content, not less than the file"
    );
}
