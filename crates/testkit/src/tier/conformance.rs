//! The conformance test suites that every storage tier of the cache must pass (traits `Tier` and
//! `FastMedium`).

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use pierhead_cache::tier::{Blob, CHUNK, FastMedium, ReadAt, Staged, Tier, Trailer};
use pierhead_oci::{Algorithm, Digest, MediaType};

/// Runs the conformance suite of storage tiers. `new` returns a new, empty tier.
///
/// # Panics
/// Panics if the tier violates the contract of [`Tier`].
pub fn conforms<T: Tier>(new: impl Fn() -> T) {
    CHECKS.iter().for_each(|check| check(&new()));
}

/// Runs the conformance suite of fast media: their tier of blobs and their tier of hot copies pass
/// the suite of storage tiers, and do not affect each other. `new` returns a new, empty medium, and
/// `restart` closes a medium and opens it again.
///
/// # Panics
/// Panics if the medium violates the contract of [`Tier`] or [`FastMedium`].
pub fn conforms_as_fast_medium<M: FastMedium>(new: impl Fn() -> M, restart: impl Fn(M) -> M) {
    for check in CHECKS {
        check(&new());
        check(&*hot_copies(&new()));
    }
    keeps_both_copies_of_a_blob_apart(new(), restart);
    keeps_both_partial_copies_of_a_blob_apart(&new());
}

const CHECKS: [fn(&dyn Tier); 9] = [
    reads_committed_blobs,
    shows_nothing_before_the_commit,
    reads_staged_bytes,
    recovers_staged_bytes_in_whole_chunks,
    refuses_a_trailer_of_another_length,
    replaces_a_blob,
    keeps_removed_blobs_readable_for_open_readers,
    drops_discarded_bytes,
    scans_all_blobs,
];

fn blob(seed: u64, len: usize) -> (Digest, Vec<u8>) {
    let mut content = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut content);
    (Digest::of(Algorithm::Sha256, &content), content)
}

fn stage(tier: &dyn Tier, digest: &Digest, content: &[u8]) -> Box<dyn Staged> {
    let mut staged = tier.stage(digest).expect("stages");
    for piece in content.chunks(10_000) {
        staged.write(&[piece]).expect("writes");
    }
    staged
}

fn commit(tier: &dyn Tier, digest: &Digest, content: &[u8], media_type: Option<&str>) {
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

fn reads_committed_blobs(tier: &dyn Tier) {
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

fn shows_nothing_before_the_commit(tier: &dyn Tier) {
    let (digest, content) = blob(1, 1000);
    drop(stage(tier, &digest, &content));
    assert!(tier.open(&digest).expect("opens").is_none());
    tier.scan(&mut |found| panic!("{found:?} is not committed"))
        .expect("scans");
}

fn reads_staged_bytes(tier: &dyn Tier) {
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

fn recovers_staged_bytes_in_whole_chunks(tier: &dyn Tier) {
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

fn refuses_a_trailer_of_another_length(tier: &dyn Tier) {
    let (digest, content) = blob(4, 1000);
    let staged = stage(tier, &digest, &content);
    assert!(staged.commit(Trailer::of(&content[1..], None)).is_err());
    assert!(tier.open(&digest).expect("opens").is_none());
}

fn replaces_a_blob(tier: &dyn Tier) {
    let (digest, content) = blob(5, 1000);
    commit(tier, &digest, &content, None);
    let older = tier.open(&digest).expect("opens").expect("is committed");
    commit(tier, &digest, &content, Some("text/plain"));
    let newer = tier.open(&digest).expect("opens").expect("is committed");
    assert!(older.trailer().media_type().is_none() && newer.trailer().media_type().is_some());
    assert_eq!(read(&*older, 0, 1000), read(&*newer, 0, 1000));
}

fn keeps_removed_blobs_readable_for_open_readers(tier: &dyn Tier) {
    let (digest, content) = blob(6, 100_000);
    tier.remove(&digest)
        .expect("removing a missing blob is not an error");
    commit(tier, &digest, &content, None);
    let blob = tier.open(&digest).expect("opens").expect("is committed");
    tier.remove(&digest).expect("removes");
    assert!(tier.open(&digest).expect("opens").is_none());
    assert_eq!(read(&*blob, 0, 100_000), content);
}

fn drops_discarded_bytes(tier: &dyn Tier) {
    let (digest, content) = blob(7, 100_000);
    tier.discard(&digest)
        .expect("removing a missing blob is not an error");
    drop(stage(tier, &digest, &content));
    tier.discard(&digest).expect("discards");
    tier.scan_staged(&mut |found| panic!("{found:?} is discarded"))
        .expect("walks");
    assert_eq!(tier.stage(&digest).expect("stages").size(), 0);
}

fn scans_all_blobs(tier: &dyn Tier) {
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

fn hot_copies(medium: &impl FastMedium) -> Arc<dyn Tier> {
    medium.hot_copies().expect("has a tier of hot copies")
}

/// Returns the contents that a tier lists, by their digests.
fn listed(tier: &dyn Tier) -> Vec<(Digest, Vec<u8>)> {
    let mut all = Vec::new();
    tier.scan(&mut |found| all.push(found.digest))
        .expect("scans");
    all.sort_unstable();
    let content = |digest: Digest| {
        let blob = tier.open(&digest).expect("opens").expect("is listed");
        let len = to_usize(blob.trailer().size());
        (digest, read(&*blob, 0, len))
    };
    all.into_iter().map(content).collect()
}

/// Checks that a medium keeps the whole copy and the hot copy of one digest apart: by their
/// contents, in the list, after a restart and after a removal.
fn keeps_both_copies_of_a_blob_apart<M: FastMedium>(new: M, restart: impl Fn(M) -> M) {
    let mut medium = new;
    let algorithms = [Algorithm::Sha256, Algorithm::Sha512];
    let (_, content) = blob(9, 2 * CHUNK);
    let mut digests = algorithms.map(|algorithm| Digest::of(algorithm, &content));
    digests.sort_unstable();
    let (whole, hot) = (&content[..], &content[CHUNK - 7..]);
    let all = |content: &[u8]| digests.map(|digest| (digest, content.to_vec()));
    for digest in &digests {
        commit(&medium, digest, whole, None);
        assert!(hot_copies(&medium).open(digest).expect("opens").is_none());
    }
    assert_eq!(listed(&*hot_copies(&medium)), []);
    for digest in &digests {
        commit(&*hot_copies(&medium), digest, hot, None);
    }
    for _ in 0..2 {
        assert_eq!(listed(&medium), all(whole));
        assert_eq!(listed(&*hot_copies(&medium)), all(hot));
        medium = restart(medium);
    }
    medium.remove(&digests[0]).expect("removes");
    hot_copies(&medium).remove(&digests[1]).expect("removes");
    for _ in 0..2 {
        assert_eq!(listed(&medium), all(whole)[1..]);
        assert_eq!(listed(&*hot_copies(&medium)), all(hot)[..1]);
        medium = restart(medium);
    }
}

/// Checks that a medium keeps the staged bytes of a blob and of its hot copy apart.
fn keeps_both_partial_copies_of_a_blob_apart(medium: &impl FastMedium) {
    let (digest, content) = blob(10, 3 * CHUNK);
    let hot = hot_copies(medium);
    drop(stage(medium, &digest, &content));
    hot.scan_staged(&mut |found| panic!("{found:?} is not hot"))
        .expect("scans");
    drop(stage(&*hot, &digest, &content[CHUNK..]));
    let resumed = hot.stage(&digest).expect("stages again");
    assert_eq!(resumed.size(), CHUNK as u64);
    assert_eq!(
        read(&*resumed.reader(), 0, CHUNK),
        content[CHUNK..2 * CHUNK]
    );
    drop(resumed);
    medium.discard(&digest).expect("discards");
    medium
        .scan_staged(&mut |found| panic!("{found:?} is discarded"))
        .expect("scans");
    let mut staged = Vec::new();
    hot.scan_staged(&mut |found| staged.push(found.digest))
        .expect("scans");
    assert_eq!(staged, [digest]);
}
