//! When the pieces of a running fill are recorded.

use std::panic::panic_any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pierhead_cache::tier::{DiskTier, Step};
use pierhead_cache::{Cache, Config};

use crate::common::{self, blob, lead, open};
use crate::{MIB, fetch, part, read, started};

/// Counts the records of a cache, and lets the first ones panic.
#[derive(Default)]
struct Records {
    count: u32,
    panics: u32,
}

fn watched(folder: &Path) -> (Cache, Arc<Mutex<Records>>) {
    let records = Arc::new(Mutex::new(Records::default()));
    let counted = records.clone();
    let tier = DiskTier::new(folder).unwrap().watched(move |step| {
        if matches!(step, Step::Sync(path) if path.extension().is_none()) {
            let mut records = counted.lock();
            records.count += 1;
            if records.panics > 0 {
                records.panics -= 1;
                drop(records);
                panic_any("the record panics");
            }
        }
        Ok(())
    });
    let config = Config::new(folder, common::AMPLE_CAPACITY);
    (common::open_on(config, tier), records)
}

/// Copies the files as a kill leaves them, and returns a cache on them.
fn killed(folder: &Path) -> (Cache, tempfile::TempDir) {
    let image = tempfile::tempdir().unwrap();
    for (path, _) in common::walk(folder) {
        let copy = image.path().join(path.strip_prefix(folder).unwrap());
        if !path.starts_with(folder.join("catalog")) {
            std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
            std::fs::copy(&path, copy).unwrap();
        }
    }
    (open(image.path()), image)
}

// The clock of these tests stands still while anything runs, and jumps while all tasks sleep.
#[tokio::test(start_paused = true)]
async fn many_small_pieces_share_a_record_and_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, records) = watched(folder.path());
    let size = 16 * MIB;
    let (fill, _, pieces, content) = started(&cache, 22, size).await;
    let offsets = (1..100).map(|index| index * 2 * 65_536);
    for offset in offsets.clone() {
        let claim = pieces.claim(offset..offset + 65_536).unwrap();
        fetch(claim, &content).await.unwrap();
    }
    assert!(records.lock().count <= 1, "{}", records.lock().count);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(records.lock().count, 2, "the first piece, and all others");
    let (cache, _image) = killed(folder.path());
    let (digest, _) = blob(22, usize::try_from(size).unwrap());
    let (mut resumed, tail) = lead(&cache, &digest).await;
    resumed.begin(Some(size)).await.unwrap();
    for offset in offsets {
        assert!(tail.pieces().claim(offset..offset + 9).is_none());
        let range = offset..offset + 65_536;
        let staged = read(&tail, range.clone()).await.unwrap();
        assert!(staged == part(&content, range), "at {offset}");
    }
    drop(fill);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_panics_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, records) = watched(folder.path());
    let (fill, _, pieces, content) = started(&cache, 23, 4 * MIB).await;
    records.lock().panics = 1;
    for offset in [MIB, 2 * MIB] {
        let claim = pieces.claim(offset..offset + 9).unwrap();
        fetch(claim, &content).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(records.lock().count, 2);
    let (cache, _image) = killed(folder.path());
    let (digest, _) = blob(23, usize::try_from(4 * MIB).unwrap());
    let (mut resumed, tail) = lead(&cache, &digest).await;
    resumed.begin(Some(4 * MIB)).await.unwrap();
    for offset in [MIB, 2 * MIB] {
        assert!(
            tail.pieces().claim(offset..offset + 9).is_none(),
            "{offset}"
        );
    }
    drop(fill);
}
