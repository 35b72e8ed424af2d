//! Tests that the cache detects damage to stored blobs before it returns any damaged byte.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::{fs, io, thread};

use bytes::Bytes;
use common::{blob, open, read_all, store};
use pierhead_cache::{BlobReader, Cache, Config, Error};
use pierhead_oci::{Digest, MediaType};
use pierhead_testkit::tier::{Faulty, MemoryTier, Op};

fn file_of(folder: &Path, digest: &Digest) -> PathBuf {
    let hex = digest.hex();
    folder.join("blobs/sha256").join(&hex[..2]).join(hex)
}

/// Reads the blob of a digest, and checks that every returned byte is correct.
async fn read_checked(
    cache: &Cache,
    digest: &Digest,
    content: &Bytes,
) -> Result<Option<usize>, Error> {
    let Some(object) = cache.get(digest).await? else {
        return Ok(None);
    };
    let mut offset = 0;
    loop {
        let piece = object.read_at(offset as u64, 50_000).await?;
        if piece.is_empty() {
            assert_eq!(offset, content.len(), "a clean end too early");
            return Ok(Some(offset));
        }
        assert!(
            content[offset..].starts_with(&piece),
            "a wrong byte has left"
        );
        offset += piece.len();
    }
}

/// Damages the only blob of a cache, reads it, and checks the result.
async fn after(damage: impl FnOnce(&Path), content: &Bytes, digest: &Digest, catalog: bool) {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    drop(
        cache
            .put(digest, &media_type, content.clone())
            .await
            .unwrap(),
    );
    cache.close().await;
    drop(cache);
    damage(&file_of(folder.path(), digest));
    if !catalog {
        fs::remove_dir_all(folder.path().join("catalog")).unwrap();
    }

    let cache = open(folder.path());
    match read_checked(&cache, digest, content).await {
        Ok(None) => {}
        Err(Error::Corrupt {
            digest: corrupt, ..
        }) => assert_eq!(corrupt, *digest),
        other => panic!("damage was not found: {other:?}"),
    }
    assert!(!cache.contains(digest), "it has been taken out");
    assert_eq!((cache.stat().used, cache.stat().blobs), (0, 0));
    assert_eq!(common::files_below(folder.path(), "blobs"), 0);
    // The blob can be fetched again.
    store(&cache, digest, content).await;
    assert_eq!(
        read_checked(&cache, digest, content).await.unwrap(),
        Some(content.len())
    );
    assert_eq!(cache.stat().reserved, 0);
}

/// pierhead made neither the folder nor its files, so it keeps them beside the blobs.
#[tokio::test]
async fn a_folder_in_place_of_a_blob_is_set_aside() {
    let (digest, content) = blob(1, 100);
    for name in ["blobs", "staging"] {
        let folder = tempfile::tempdir().unwrap();
        drop(open(folder.path()));
        let path = match name {
            "blobs" => file_of(folder.path(), &digest),
            _ => folder.path().join(name).join(digest.file_name()),
        };
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "of a user").unwrap();
        let cache = open(folder.path());
        store(&cache, &digest, &content).await;
        assert!(
            read_checked(&cache, &digest, &content)
                .await
                .unwrap()
                .is_some()
        );
        let aside = path.with_added_extension("damaged");
        assert_eq!(fs::read(aside.join("file")).unwrap(), b"of a user");
        cache.close().await;
    }
}

fn flip(at: u64) -> impl Fn(&Path) {
    move |path| {
        let mut bytes = fs::read(path).unwrap();
        bytes[usize::try_from(at).unwrap()] ^= 0x10;
        fs::write(path, bytes).unwrap();
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_detected() {
    let (digest, content) = blob(1, 100);
    // The damaged positions are in the content, in a checksum, in the media type, and at every byte
    // of the footer.
    let len = 100 + 4 + MediaType::OCI_MANIFEST.len() as u64 + 32;
    for at in [0, 50, 99, 100, 103, 104, 120]
        .into_iter()
        .chain(len - 32..len)
    {
        after(flip(at), &content, &digest, at % 2 == 0).await;
    }
    let (digest, content) = blob(2, 200_000);
    for at in [0, 65_535, 65_536, 131_072, 199_999] {
        after(flip(at), &content, &digest, at % 2 == 0).await;
    }
}

#[tokio::test]
async fn a_changed_length_is_detected() {
    let (digest, content) = blob(3, 70_000);
    for len in [0, 1, 31, 32, 69_999, 70_000, 70_001, 70_040, 80_000] {
        for catalog in [true, false] {
            let cut = |path: &Path| {
                fs::File::options()
                    .write(true)
                    .open(path)
                    .unwrap()
                    .set_len(len)
                    .unwrap()
            };
            after(cut, &content, &digest, catalog).await;
        }
    }
}

#[tokio::test]
async fn a_file_under_another_name_is_detected() {
    let (digest, content) = blob(4, 5000);
    let (other, other_content) = blob(5, 5000);
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    drop(cache.put(&other, &media_type, other_content).await.unwrap());
    let wrong = fs::read(file_of(folder.path(), &other)).unwrap();
    after(
        |path| fs::write(path, &wrong).unwrap(),
        &content,
        &digest,
        true,
    )
    .await;
}

#[tokio::test]
async fn a_file_that_vanished_is_a_miss() {
    let (digest, content) = blob(6, 70_000);
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    store(&cache, &digest, &content).await;
    fs::remove_file(file_of(folder.path(), &digest)).unwrap();
    assert!(cache.get(&digest).await.unwrap().is_none());
    store(&cache, &digest, &content).await;
}

#[tokio::test]
async fn damage_under_an_open_handle_fails_its_readers() {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faulty::new(Arc::new(MemoryTier::default()));
    let config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    let tier = faults.clone();
    let cache = common::open_on(config, tier);
    let (digest, content) = blob(7, 500_000);
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    let other = object.clone();
    assert_eq!(
        object.read_at(0, 70_000).await.unwrap(),
        content.slice(..70_000)
    );
    faults.corrupt(digest, 300_000);
    assert_eq!(
        object.read_at(196_608, 65_536).await.unwrap(),
        content.slice(196_608..262_144)
    );
    let error = object.read_at(262_144, 10).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Corrupt {
                offset: 262_144,
                ..
            }
        ) && error.is_retryable(),
        "{error}"
    );
    assert!(!cache.contains(&digest));
    // A second reader of the old handle also finds the damage, but must not remove the new blob.
    store(&cache, &digest, &content).await;
    let newer = cache.get(&digest).await.unwrap().unwrap();
    faults.corrupt(digest, 300_000);
    assert!(matches!(
        other.read_at(300_000, 1).await,
        Err(Error::Corrupt { .. })
    ));
    assert!(cache.contains(&digest));
    drop((object, other, newer));
    assert_eq!(cache.stat().reserved, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_a_damaged_blob_keeps_a_blob_that_was_committed_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(folder.path(), common::AMPLE_CAPACITY);
    config.memory = 0;
    let tier = Faulty::new(Arc::new(MemoryTier::default()));
    let cache = Arc::new(common::open_on(config, tier.clone()));
    let (digest, content) = blob(8, 1000);
    let types =
        [MediaType::OCI_INDEX, MediaType::OCI_MANIFEST].map(|it| MediaType::new(it).unwrap());
    let put = |media_type| cache.put(&digest, media_type, content.clone());
    drop(put(&types[0]).await.unwrap());
    // The first open reports damage, after the test has reached the barrier.
    let opened = Arc::new(Barrier::new(2));
    let (reached, damaged) = (opened.clone(), AtomicBool::new(true));
    tier.on_call(move |op, _| {
        if op == Op::Open && damaged.swap(false, Ordering::SeqCst) {
            reached.wait();
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(())
    });
    let on = cache.clone();
    let reader = thread::spawn(move || on.open_for_background(&digest).unwrap().is_none());
    opened.wait();
    // This thread commits the blob again as soon as the lock of its digest is free.
    drop(put(&types[1]).await.unwrap());
    assert!(reader.join().unwrap(), "the damaged blob is not served");
    let stored = cache.peek(&digest).await.unwrap();
    let stored = stored.expect("the new commit stays");
    assert_eq!(stored.read_all(2000).await.unwrap(), content);
}

#[tokio::test]
async fn truncation_under_an_open_handle_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(11, 300_000);
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    let file = fs::File::options()
        .write(true)
        .open(file_of(folder.path(), &digest))
        .unwrap();
    file.set_len(200_000).unwrap();
    assert_eq!(object.read_at(0, 10).await.unwrap(), content.slice(..10));
    let cut = object.read_at(250_000, 10).await;
    assert!(matches!(cut, Err(Error::Corrupt { .. })), "{cut:?}");
    assert!(!cache.contains(&digest));
}

#[tokio::test]
async fn reads_of_any_shape_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let (digest, content) = blob(8, 400_001);
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    for _ in 0..500 {
        let offset = random.usize(..=content.len());
        let max = random.usize(1..300_000);
        let piece = object.read_at(offset as u64, max).await.unwrap();
        assert!(content[offset..].starts_with(&piece) && piece.len() <= max.min(131_072));
        assert_eq!(piece.is_empty(), offset == content.len());
    }
    for max in [1000, 65_536, 65_537, 131_072] {
        let mut all = Vec::new();
        while all.len() < content.len() {
            all.extend_from_slice(&object.read_at(all.len() as u64, max).await.unwrap());
        }
        assert_eq!(all, content);
    }
    assert!(object.read_at(u64::MAX, 10).await.unwrap().is_empty());
    assert!(object.read_at(5, 0).await.unwrap().is_empty());
    assert!(object.read_all(400_000).await.is_err());
    assert_eq!(
        read_all(&BlobReader::Stored(object)).await.unwrap(),
        content
    );
}

#[tokio::test]
async fn verify_reads_against_the_digest() {
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(9, 200_000);
    let (verified_len, sound_content) = blob(10, 200_000);
    let cache = open(folder.path());
    store(&cache, &digest, &content).await;
    store(&cache, &verified_len, &sound_content).await;
    flip(150_000)(&file_of(folder.path(), &digest));
    assert!(!cache.verify(&digest).await.unwrap());
    assert!(
        cache.verify(&digest).await.unwrap(),
        "what is not there is not verified"
    );
    assert!(cache.verify(&verified_len).await.unwrap());
    assert!(!cache.contains(&digest) && cache.contains(&verified_len));
    // The flipped bit is in the trailer, so the content is intact.
    flip(200_001)(&file_of(folder.path(), &verified_len));
    assert!(!cache.verify(&verified_len).await.unwrap());
}

#[tokio::test]
async fn only_recently_verified_bytes_may_be_sent_without_reading() {
    const CHUNK: u64 = 65_536;
    let folder = tempfile::tempdir().unwrap();
    let (digest, content) = blob(12, 400_000);
    let cache = open(folder.path());
    store(&cache, &digest, &content).await;
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(
        object.verified_len(0, u64::MAX),
        400_000,
        "verified at the commit"
    );
    assert_eq!(object.verified_len(399_000, 500), 500);
    assert_eq!(
        (object.verified_len(400_000, 1), object.verified_len(0, 0)),
        (0, 0)
    );
    drop(object);
    cache.close().await;
    drop(cache);

    let cache = open(folder.path());
    let object = cache.get(&digest).await.unwrap().unwrap();
    assert_eq!(object.verified_len(0, u64::MAX), 0, "by another process");
    object.read_at(2 * CHUNK, 10).await.unwrap();
    assert_eq!(object.verified_len(0, u64::MAX), 0);
    assert_eq!(object.verified_len(2 * CHUNK + 1, u64::MAX), CHUNK - 1);
    let granted = object.verified_range(2 * CHUNK + 1, u64::MAX).unwrap();
    assert_eq!(
        (granted.offset(), granted.bytes()),
        (2 * CHUNK + 1, CHUNK - 1)
    );
    assert!(granted.file_position().is_some());
    let path = file_of(folder.path(), &digest);
    let damage = |at| {
        use std::os::unix::fs::FileExt as _;
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[content[at] ^ 1], at as u64).unwrap();
    };
    damage(300_000);
    assert_eq!(object.verified_len(2 * CHUNK, 1), 0, "the file has changed");
    assert!(
        granted.file_position().is_none(),
        "nor is what was granted before"
    );
    object.clone().read_at(2 * CHUNK, 10).await.unwrap();
    assert_eq!(object.verified_len(2 * CHUNK, u64::MAX), CHUNK);
    assert!(matches!(
        object.read_at(4 * CHUNK, 10).await,
        Err(Error::Corrupt { .. })
    ));
    assert_eq!(object.verified_len(4 * CHUNK, u64::MAX), 0);
}
