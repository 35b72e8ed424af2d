//! Unit test of maintenance with a plan file that cannot be read: all other steps of maintenance
//! still run.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pierhead_host::BackgroundWork;
use pierhead_oci::Digest;
use pierhead_testkit::images;
use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::{Blob, Blobs, FileDigest};

use super::*;
use crate::pack::{FrameIndex as _, RecordLocation};
use crate::server::plan_store::request_key;
use crate::{BundleServer, Config, Image, State};

/// Blobs in memory, from which the server reads layers.
#[derive(Default)]
struct MemoryBlobs(Mutex<HashMap<Digest, Arc<MemoryBlob>>>);

impl Blobs for MemoryBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let found = self.0.lock().get(digest).cloned();
        Ok(found.map(|blob| blob as Arc<dyn Blob>))
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(60), "the wait takes too long");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn maintenance_with_an_unreadable_plan_runs_all_other_steps() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = Arc::<MemoryBlobs>::default();
    let background = BackgroundWork::default();
    background.set_paused(true);
    let mut config = Config::new(folder.path(), 256 << 20, 64 << 20);
    config.cpu_percent = 100;
    (config.fast_level, config.optimized_level) = (1, 12);
    config.background = background.clone();
    let server = BundleServer::open(config, blobs.clone()).unwrap();
    let context = &*server.context;
    let [kept, gone] = [1, 2].map(|seed| {
        let image = images::Image::tree(seed, &images::TreeOptions::default()).image;
        for blob in &image.blobs {
            let bytes = Arc::new(MemoryBlob(blob.bytes.to_vec()));
            blobs.0.lock().insert(blob.digest, bytes);
        }
        for document in &image.documents {
            let bytes = Arc::new(MemoryBlob(document.bytes.to_vec()));
            blobs.0.lock().insert(document.digest, bytes);
        }
        server.offer(Image {
            manifest: image.root,
            repository: "registry/app".into(),
        });
        server.awaited(&image.root);
        wait_until(|| server.state(&image.root) == State::Ready);
        image.root
    });
    // The plan file is replaced by a link to itself, so opening it fails with ELOOP. This stands
    // for EACCES or EIO.
    let plan = context.paths.plan(&request_key(&kept, &[], true));
    std::fs::remove_file(&plan).unwrap();
    std::os::unix::fs::symlink(&plan, &plan).unwrap();
    context.plans.close_all();
    // The optimization needs the plan, so the optimization fails and is no longer queued.
    background.set_paused(false);
    wait_until(|| server.stat().jobs == 0);
    background.set_paused(true);

    blobs.0.lock().remove(&gone);
    let gone_content = FileDigest::of(b"a content of an evicted pack");
    let location = RecordLocation {
        pack: 7777,
        offset: 0,
        len: 1,
    };
    context
        .image_database
        .put(&gone_content, &[location])
        .unwrap();
    // This stores a number that differs from the real number of evictions, so maintenance assumes
    // that packs were evicted.
    context.pack_usage.has_evicted_since(u64::MAX);
    context.pack_usage.note_unused();
    let packs = server.stat().packs;

    let mut share = CpuShare::new(100, context.queue.stop_flag());
    maintain(context, &mut share).expect_err("the plan is unreadable");

    assert_eq!(server.state(&gone), State::Unknown, "its manifest is gone");
    assert!(!context.paths.toc(&gone).exists());
    assert!(context.paths.toc(&kept).exists());
    assert_eq!(server.stat().packs, packs, "the plan may name any pack");
    assert!(context.pack_usage.take_unused(), "packs may be unused");
    assert_eq!(server.stat().jobs, 1, "the image waits for optimization");
    assert_eq!(context.image_database.get(&gone_content).unwrap(), []);
    assert!(plan.is_symlink(), "an unreadable file may be intact");
    server.close();
}
