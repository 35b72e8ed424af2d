//! Test of starts of the cache while the process has few free file descriptors: no start deletes a
//! tag or a pin, and a start without the pins fails.
//!
//! This test is a program of its own, because the limit of file descriptors applies to a whole
//! process.

#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod common;

use std::io;

use common::{blob, open, tag, tag_record};
use pierhead_cache::{Cache, Config, Error};
use pierhead_eviction::Lru;
use pierhead_testkit::file_descriptors::{LIMIT, OccupiedDescriptors};

fn is_emfile(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error())
}

#[tokio::test]
async fn a_start_without_free_file_descriptors_deletes_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    for number in 0..8 {
        cache
            .tags()
            .put(&tag(number), tag_record(number))
            .await
            .unwrap();
    }
    let pinned = vec![blob(1, 10).0];
    cache.pin("image", pinned.clone()).await.unwrap();
    cache.close().await;
    drop(cache);
    let records = || ["names", "pins"].map(|name| common::files_below(folder.path(), name));
    let all = records();
    let mut refused_pins = 0;
    for free in 0..LIMIT {
        let occupied = OccupiedDescriptors::all_but(free);
        let config = Config::new(folder.path(), common::AMPLE_CAPACITY);
        let opened = Cache::open(config, Box::new(Lru::default()));
        drop(occupied);
        assert_eq!(records(), all, "with {free} free descriptors");
        match opened {
            Ok(cache) => {
                assert_eq!(cache.pins(), [("image".to_owned(), pinned.clone())]);
                cache.close().await;
                break;
            }
            Err(Error::UnreadablePin { source, .. }) => {
                assert!(is_emfile(&source), "{source}");
                refused_pins += 1;
            }
            Err(_) => {}
        }
    }
    assert!(refused_pins > 0, "no start lacked a descriptor for the pin");
    let cache = open(folder.path());
    assert_eq!((cache.tags().len(), cache.pins().len()), (8, 1));
}
