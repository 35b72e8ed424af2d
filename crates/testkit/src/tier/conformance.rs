//! The conformance test suite that every storage tier of the cache must pass (trait `Tier`).

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt as _;

use pierhead_cache::tier::{Blob, CHUNK, ReadAt, Staged, Tier, Trailer};
use pierhead_oci::{Algorithm, Digest, MediaType};

/// Runs the conformance suite of storage tiers. `new` returns a new, empty tier.
///
/// # Panics
/// Panics if the tier violates the contract of [`Tier`].
pub fn conforms<T: Tier>(new: impl Fn() -> T) {
    reads_committed_blobs(&new());
    shows_nothing_before_the_commit(&new());
    reads_staged_bytes(&new());
    recovers_staged_bytes_in_whole_chunks(&new());
    refuses_a_trailer_of_another_length(&new());
    replaces_a_blob(&new());
    keeps_removed_blobs_readable_for_open_readers(&new());
    drops_discarded_bytes(&new());
    scans_all_blobs(&new());
}

fn blob(seed: u64, len: usize) -> (Digest, Vec<u8>) {
    let mut content = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut content);
    (Digest::of(Algorithm::Sha256, &content), content)
}

fn stage(tier: &impl Tier, digest: &Digest, content: &[u8]) -> Box<dyn Staged> {
    let mut staged = tier.stage(digest).expect("stages");
    for piece in content.chunks(10_000) {
        staged.write(&[piece]).expect("writes");
    }
    staged
}

fn commit(tier: &impl Tier, digest: &Digest, content: &[u8], media_type: Option<&str>) {
    let media_type = media_type.and_then(MediaType::new);
    let trailer = Trailer::of(content, media_type);
    let blob = stage(tier, digest, content)
        .commit(trailer.clone())
        .expect("commits");
    assert_eq!(*blob.trailer(), trailer);
}

fn read(from: &(impl ReadAt + ?Sized), offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    from.read_at(offset as u64, &mut bytes).expect("reads");
    let mut at_once = vec![0; len];
    let got = from
        .try_read_at(offset as u64, &mut at_once)
        .expect("a read without blocking");
    assert_eq!(
        at_once[..got],
        bytes[..got],
        "both read functions return the same bytes"
    );
    bytes
}

fn reads_committed_blobs(tier: &impl Tier) {
    let cases = [
        (0, None),
        (1, Some("text/plain")),
        (CHUNK, None),
        (CHUNK + 1, Some("a/b")),
        (300_000, None),
    ];
    for (len, media_type) in cases {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let (_, content) = blob(len as u64, len);
            let digest = Digest::of(algorithm, &content);
            assert!(tier.open(&digest).expect("opens").is_none());
            commit(tier, &digest, &content, media_type);
            let blob = tier.open(&digest).expect("opens").expect("is committed");
            assert_eq!(blob.trailer().size(), len as u64);
            assert_eq!(
                blob.trailer().media_type().map(|media| media.as_str()),
                media_type
            );
            assert_eq!(
                *blob.trailer(),
                Trailer::of(&content, media_type.and_then(MediaType::new))
            );
            assert_eq!(read(&*blob, 0, len), content);
            assert_eq!(
                read(&*blob, len / 3, len / 2),
                content[len / 3..len / 3 + len / 2]
            );
            returns_its_content_at_each_offset(&*blob, &content);
        }
    }
}

/// Checks that the consecutive extents of the blob, from any offset on, contain the bytes of the
/// blob.
fn returns_its_content_at_each_offset(blob: &dyn Blob, content: &[u8]) {
    let end = content.len() as u64;
    assert!(
        blob.extent(end + 1).is_none(),
        "there is no extent at the end"
    );
    let mut offset = 0;
    while let Some(extent) = blob.extent(offset).filter(|_| offset < end) {
        assert!(extent.len > 0 && extent.len <= end - offset);
        let (from, len) = (to_usize(offset), to_usize(extent.len));
        let mut bytes = vec![0; len];
        extent
            .file
            .read_exact_at(&mut bytes, extent.at)
            .expect("reads");
        assert_eq!(bytes, content[from..from + len]);
        let half = extent.len / 2;
        let later = blob
            .extent(offset + half)
            .expect("an extent from the middle on");
        assert_eq!((later.at, later.len), (extent.at + half, extent.len - half));
        assert_eq!(later.record, extent.record);
        offset += extent.len;
    }
    assert!(offset == 0 || offset == end, "one extent or none");
}

fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("small")
}

fn shows_nothing_before_the_commit(tier: &impl Tier) {
    let (digest, content) = blob(1, 1000);
    drop(stage(tier, &digest, &content));
    assert!(tier.open(&digest).expect("opens").is_none());
    tier.scan(&mut |found| panic!("{found:?} is not committed"))
        .expect("scans");
}

fn reads_staged_bytes(tier: &impl Tier) {
    let (digest, content) = blob(2, 200_000);
    let mut staged = tier.stage(&digest).expect("stages");
    assert_eq!(staged.size(), 0);
    let reader = staged.reader();
    for (index, piece) in content.chunks(7000).enumerate() {
        staged.write(&[piece]).expect("writes");
        assert_eq!(read(&*reader, index * 7000, piece.len()), piece);
    }
    assert_eq!(staged.size(), 200_000);
    assert!(
        reader.read_at(199_999, &mut [0; 2]).is_err(),
        "an end before the end of the buffer is an error"
    );
    staged.commit(Trailer::of(&content, None)).expect("commits");
    assert_eq!(read(&*reader, 0, 200_000), content, "after the commit");
    tier.remove(&digest).expect("removes");
    assert_eq!(
        read(&*reader, 100, 1000),
        content[100..1100],
        "after the removal"
    );
}

fn recovers_staged_bytes_in_whole_chunks(tier: &impl Tier) {
    let cases = [
        (0, 0),
        (1, 0),
        (CHUNK, 0),
        (CHUNK + 1, CHUNK),
        (2 * CHUNK, CHUNK),
        (2 * CHUNK + 9, 2 * CHUNK),
    ];
    for (len, staged_len) in cases {
        let (digest, content) = blob(100 + len as u64, len);
        drop(stage(tier, &digest, &content));
        let mut staged = tier.stage(&digest).expect("stages again");
        assert_eq!(staged.size(), staged_len as u64, "of {len}");
        assert_eq!(
            read(&*staged.reader(), 0, staged_len),
            content[..staged_len]
        );
        staged.write(&[&content[staged_len..]]).expect("writes");
        staged.commit(Trailer::of(&content, None)).expect("commits");
        let blob = tier.open(&digest).expect("opens").expect("is committed");
        assert_eq!(read(&*blob, 0, len), content);
    }
    let (digest, content) = blob(3, 3 * CHUNK);
    let mut staged = stage(tier, &digest, &content);
    staged.clear().expect("clears");
    assert_eq!(staged.size(), 0);
    staged.write(&[&content[..5]]).expect("writes");
    assert_eq!(
        (staged.size(), read(&*staged.reader(), 0, 5)),
        (5, content[..5].to_vec())
    );
}

fn refuses_a_trailer_of_another_length(tier: &impl Tier) {
    let (digest, content) = blob(4, 1000);
    let staged = stage(tier, &digest, &content);
    assert!(staged.commit(Trailer::of(&content[1..], None)).is_err());
    assert!(tier.open(&digest).expect("opens").is_none());
}

fn replaces_a_blob(tier: &impl Tier) {
    let (digest, content) = blob(5, 1000);
    commit(tier, &digest, &content, None);
    let older = tier.open(&digest).expect("opens").expect("is committed");
    commit(tier, &digest, &content, Some("text/plain"));
    let newer = tier.open(&digest).expect("opens").expect("is committed");
    assert!(older.trailer().media_type().is_none() && newer.trailer().media_type().is_some());
    assert_eq!(read(&*older, 0, 1000), read(&*newer, 0, 1000));
}

fn keeps_removed_blobs_readable_for_open_readers(tier: &impl Tier) {
    let (digest, content) = blob(6, 100_000);
    tier.remove(&digest)
        .expect("removing a missing blob is not an error");
    commit(tier, &digest, &content, None);
    let blob = tier.open(&digest).expect("opens").expect("is committed");
    tier.remove(&digest).expect("removes");
    assert!(tier.open(&digest).expect("opens").is_none());
    assert_eq!(read(&*blob, 0, 100_000), content);
}

fn drops_discarded_bytes(tier: &impl Tier) {
    let (digest, content) = blob(7, 100_000);
    tier.discard(&digest)
        .expect("removing a missing blob is not an error");
    drop(stage(tier, &digest, &content));
    tier.discard(&digest).expect("discards");
    tier.scan_staged(&mut |found| panic!("{found:?} is discarded"))
        .expect("walks");
    assert_eq!(tier.stage(&digest).expect("stages").size(), 0);
}

fn scans_all_blobs(tier: &impl Tier) {
    let mut expected = BTreeSet::new();
    for seed in 0..20 {
        let (digest, content) = blob(200 + seed, 500 * usize::try_from(seed).expect("small"));
        commit(
            tier,
            &digest,
            &content,
            (seed % 2 == 0).then_some("text/plain"),
        );
        expected.insert((
            digest,
            content.len()
                + Trailer::of(
                    &content,
                    MediaType::new("text/plain").filter(|_| seed % 2 == 0),
                )
                .encode(&digest)
                .len(),
        ));
        if seed % 3 == 0 {
            tier.remove(&digest).expect("removes");
            expected.retain(|(known, _)| *known != digest);
        }
    }
    let (staged, content) = blob(8, 100_000);
    drop(stage(tier, &staged, &content));
    let mut found = BTreeSet::new();
    tier.scan(&mut |blob| {
        assert!(found.insert((blob.digest, usize::try_from(blob.bytes).expect("small"))))
    })
    .expect("scans");
    assert_eq!(found, expected);
    let mut leftovers = Vec::new();
    tier.scan_staged(&mut |found| leftovers.push((found.digest, found.bytes)))
        .expect("walks");
    assert_eq!(leftovers, [(staged, 100_000)]);
}
