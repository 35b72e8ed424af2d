//! Tests that a fill (the download of a blob into the cache) resumes only staged bytes (bytes of an
//! unfinished fill) from its own registry, even after a restart or a kill of the process, and that
//! a stored blob keeps its registries after a restart.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use common::{blob, open, open_with};
use pierhead_cache::tier::{DiskTier, Options};
use pierhead_cache::{Cache, Claim, Config, FastTier, Fill, Origin, Placement};
use pierhead_oci::{Digest, MediaType};
use pierhead_testkit::wait::until_async;

fn registry(name: &str) -> Origin {
    Origin::of(&name.parse().unwrap())
}

async fn lead(cache: &Cache, digest: &Digest, origin: Origin) -> Fill {
    match cache.claim(digest, origin).await.unwrap() {
        Claim::Leader(fill, _) => fill,
        _ => panic!("nobody else fills it"),
    }
}

/// Stages `len` bytes of some other content under this digest, then aborts the fill.
async fn cut(cache: &Cache, digest: &Digest, origin: Origin, len: usize) {
    let mut fill = lead(cache, digest, origin).await;
    assert_eq!(fill.offset(), 0);
    fill.begin(Some(1_000_000)).await.unwrap();
    fill.write(vec![7; len].into()).await.unwrap();
    fill.abandon("cut");
    until_async("the end of the fill", || cache.stat().fills == 0).await;
}

/// Checks the offset at which the fill resumes, and fills the blob from this offset to its end.
async fn complete(cache: &Cache, seed: u64, origin: Origin, offset: u64) {
    let (digest, content) = blob(seed, 1_000_000);
    let mut fill = lead(cache, &digest, origin).await;
    assert_eq!(fill.offset(), offset);
    fill.begin(Some(1_000_000)).await.unwrap();
    let rest = content.slice(usize::try_from(offset).unwrap()..);
    fill.write(rest).await.unwrap();
    fill.finish().await.unwrap();
}

fn origins(folder: &Path) -> usize {
    common::files_below(folder, "origins")
}

#[tokio::test]
async fn a_small_blob_creates_no_origin_file() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    // A single staged chunk is never resumed, so its registry is not recorded.
    for (seed, len, files) in [(1, 20_000, 0), (2, 65_536, 0), (3, 65_537, 1)] {
        let (digest, content) = blob(seed, len);
        let mut fill = lead(&cache, &digest, registry("a.example")).await;
        fill.begin(Some(len as u64)).await.unwrap();
        fill.write(content).await.unwrap();
        let staged = || common::walk(&folder.path().join("staging"))[0].1;
        until_async("the staged bytes", || staged() >= len as u64).await;
        assert_eq!(origins(folder.path()), files, "{len}");
        fill.finish().await.unwrap();
        assert_eq!(origins(folder.path()), 0);
    }
}

#[tokio::test]
async fn a_fill_from_another_registry_starts_at_zero() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let digest = blob(1, 1_000_000).0;
    let (evil, honest) = (registry("evil.example"), registry("honest.example"));
    cut(&cache, &digest, evil, 500_000).await;
    assert_eq!(cache.stat().reserved, 503_808, "the bound counts them");
    // A fill from the same registry may resume the bytes.
    let fill = lead(&cache, &digest, evil).await;
    assert_eq!(fill.offset(), 458_752);
    fill.abandon("cut again");
    until_async("the end of the fill", || cache.stat().fills == 0).await;
    complete(&cache, 1, honest, 0).await;
    assert_eq!(cache.stat().reserved, 0);
    assert_eq!(origins(folder.path()), 0);
    assert_eq!(common::files_below(folder.path(), "staging"), 0);
}

#[tokio::test]
async fn staged_bytes_keep_their_registry_after_a_restart_and_a_kill() {
    let (evil, honest) = (registry("evil.example"), registry("honest.example"));
    for kills in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let cache = open(folder.path());
        for seed in [1, 2] {
            cut(&cache, &blob(seed, 1_000_000).0, evil, 500_000).await;
        }
        let (own, content) = blob(3, 1_000_000);
        let mut fill = lead(&cache, &own, honest).await;
        fill.begin(Some(1_000_000)).await.unwrap();
        fill.write(content.slice(..500_000)).await.unwrap();
        let killed = tempfile::tempdir().unwrap();
        let data = match kills {
            // These files are left if the process is killed in the middle of that fill.
            true => {
                let len = || fs::metadata(staged(folder.path(), &own)).unwrap().len();
                until_async("the staged bytes", || len() >= 500_000).await;
                for (path, _) in common::walk(folder.path()) {
                    let copy = killed
                        .path()
                        .join(path.strip_prefix(folder.path()).unwrap());
                    fs::create_dir_all(copy.parent().unwrap()).unwrap();
                    fs::copy(path, copy).unwrap();
                }
                killed.path()
            }
            false => {
                fill.abandon("cut");
                cache.close().await;
                folder.path()
            }
        };
        drop(cache);
        let cache = open(data);
        assert_eq!(cache.stat().reserved, 3 * 503_808);
        assert_eq!(origins(data), 3);
        complete(&cache, 3, honest, 458_752).await;
        complete(&cache, 1, honest, 0).await;
        let fill = lead(&cache, &blob(2, 1_000_000).0, evil).await;
        assert_eq!(fill.offset(), 458_752);
    }
}

fn staged(folder: &Path, digest: &Digest) -> std::path::PathBuf {
    folder
        .join("staging")
        .join(format!("sha256-{}", digest.hex()))
}

#[tokio::test]
async fn staged_bytes_of_an_unknown_registry_are_deleted_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let digests: Vec<_> = (1..4).map(|seed| blob(seed, 1_000_000).0).collect();
    for digest in &digests {
        cut(&cache, digest, registry("one.example"), 500_000).await;
    }
    cache.close().await;
    drop(cache);
    let marks = common::walk(&folder.path().join("origins"));
    let of = |digest: &Digest| {
        let hex = digest.hex();
        let mut marks = marks.iter().map(|(path, _)| path);
        marks
            .find(|it| it.to_str().unwrap().contains(&hex))
            .unwrap()
    };
    // After these changes, one digest has no recorded registry, and one digest has two registries.
    fs::remove_file(of(&digests[0])).unwrap();
    let other = of(&digests[1]).with_extension("0123456789abcdef0123456789abcdef");
    fs::write(other, "").unwrap();
    let cache = open(folder.path());
    assert_eq!(cache.stat().reserved, 503_808);
    assert_eq!(
        (
            origins(folder.path()),
            common::files_below(folder.path(), "staging")
        ),
        (1, 1)
    );
    let fill = lead(&cache, &digests[2], registry("one.example")).await;
    assert_eq!(fill.offset(), 458_752);
}

#[tokio::test]
async fn a_follower_learns_the_registry_of_the_fill() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let digest = blob(1, 1000).0;
    let (one, two) = (registry("one.example"), registry("two.example"));
    let _fill = lead(&cache, &digest, one).await;
    let Claim::Follower(reader) = cache.claim(&digest, two).await.unwrap() else {
        panic!("a fill runs");
    };
    assert!(reader.is_fill_from(&one) && !reader.is_fill_from(&two));
}

fn in_repository(name: &str, repository: &str) -> Origin {
    registry(name).in_repository(&repository.parse().unwrap())
}

/// Closes the cache, deletes its catalog if told so, and opens the cache again.
async fn reopen(cache: Cache, folder: &Path, loses_catalog: bool) -> Cache {
    cache.close().await;
    drop(cache);
    if loses_catalog {
        fs::remove_dir_all(folder.join("catalog")).unwrap();
    }
    open(folder)
}

#[tokio::test]
async fn a_blob_keeps_its_registry_and_repository_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut cache = open(folder.path());
    let (layer, content) = blob(1, 200_000);
    let mut fill = lead(&cache, &layer, registry("one.example")).await;
    fill.set_repository(&"app".parse().unwrap());
    fill.begin(Some(200_000)).await.unwrap();
    fill.write(content).await.unwrap();
    fill.finish().await.unwrap();
    let (document, content) = blob(2, 1000);
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    let origin = in_repository("one.example", "app");
    let put = cache.put_from(origin, &document, &media_type, (content, None));
    drop(put.await.unwrap());
    for loses_catalog in [false, false, true, false] {
        cache = reopen(cache, folder.path(), loses_catalog).await;
        for digest in [&layer, &document] {
            assert!(cache.has_origin(digest, &registry("one.example")));
            assert!(cache.has_origin(digest, &in_repository("one.example", "app")));
            assert!(!cache.has_origin(digest, &in_repository("one.example", "secret")));
            assert!(!cache.has_origin(digest, &registry("two.example")));
            assert!(!cache.has_origin(digest, &in_repository("two.example", "app")));
        }
    }
    cache.remove(vec![layer]).await.unwrap();
    assert!(!cache.has_origin(&layer, &registry("one.example")));
}

#[tokio::test]
async fn a_registry_that_sent_a_stored_blob_again_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let mut cache = open(folder.path());
    let (digest, content) = blob(1, 100_000);
    // The file of this blob has no origin, as the files of earlier builds.
    let media_type = MediaType::new(MediaType::OCI_MANIFEST).unwrap();
    drop(cache.put(&digest, &media_type, content).await.unwrap());
    let file = common::walk(&folder.path().join("blobs")).remove(0).0;
    let len = fs::metadata(&file).unwrap().len();
    assert_eq!(len, 100_000 + 8 + media_type.as_str().len() as u64 + 32);
    cache = reopen(cache, folder.path(), false).await;
    let [one, two] = ["one.example", "two.example"].map(registry);
    assert!(!cache.has_origin(&digest, &one));
    cache.add_origin(&digest, one);
    cache.add_origin(&digest, two);
    cache = reopen(cache, folder.path(), false).await;
    assert!(cache.has_origin(&digest, &one) && cache.has_origin(&digest, &two));
    // Only the catalog has these registries.
    cache = reopen(cache, folder.path(), true).await;
    assert!(!cache.has_origin(&digest, &one) && cache.is_stored(&digest));
    cache.add_origin(&blob(2, 5).0, one);
    assert!(!cache.has_origin(&blob(2, 5).0, &one), "it is not stored");
}

#[tokio::test]
async fn a_file_with_an_origin_is_opened_if_its_catalog_entry_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let one = registry("one.example");
    complete(&cache, 1, one, 0).await;
    cache.close().await;
    drop(cache);
    // An earlier build wrote this entry, for an earlier file of the same blob.
    let database = common::open_catalog(folder.path());
    let blobs = database.open_tree("blobs").unwrap();
    let (key, value) = blobs.first().unwrap().unwrap();
    blobs.insert(key, &value[..value.len() - 32]).unwrap();
    database.flush().unwrap();
    drop((blobs, database));
    let cache = open(folder.path());
    assert!(cache.has_origin(&blob(1, 1_000_000).0, &one));
}

#[tokio::test]
async fn with_a_fast_tier_no_fill_resumes_bytes_from_before_the_last_boot() {
    let (folder, fast) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = || {
        let mut config = Config::new(folder.path(), common::AMPLE_CAPACITY);
        config.fast = Some(FastTier {
            tier: Arc::new(DiskTier::new(fast.path()).unwrap()),
            options: Options::new(16 << 20),
            placement: Placement::default(),
            class: "persistent",
            capacity: 16 << 20,
        });
        open_with(config)
    };
    let (one, digest) = (registry("one.example"), blob(1, 1_000_000).0);
    let boot = folder.path().join("boot");
    // The last round has a folder in place of the file, so the boot cannot be recorded.
    for (boots, is_writable, offset) in [(false, true, 458_752), (true, true, 0), (false, false, 0)]
    {
        if !is_writable {
            fs::remove_file(&boot).unwrap();
            fs::create_dir(&boot).unwrap();
        }
        let cache = open();
        cut(&cache, &digest, one, 500_000).await;
        cache.close().await;
        drop(cache);
        if boots {
            fs::write(&boot, "another boot\n").unwrap();
        }
        let cache = open();
        let fill = lead(&cache, &digest, one).await;
        assert_eq!(fill.offset(), offset);
        drop(fill);
        until_async("the end of the fill", || cache.stat().fills == 0).await;
        cache.prune(0).await.unwrap();
        cache.close().await;
    }
}
