//! Test of a background job that panics. This test runs in its own process, since background threads
//! write the log of the whole process.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::io;
use std::sync::Arc;

use pierhead_bundle_server::{BundleServer, Config, Image, State};
use pierhead_host::{BackgroundTask, BackgroundWork};
use pierhead_oci::Digest;
use pierhead_testkit::images::{self, TreeOptions};
use pierhead_testkit::log::capture_process;
use pierhead_testkit::source::MemoryBlobs;
use pierhead_testkit::wait;
use pierhead_toc::{Blob, Blobs};

/// Blobs in memory. An attempt to open `panicking` panics.
struct PanickingBlobs {
    blobs: MemoryBlobs,
    panicking: Digest,
}

impl Blobs for PanickingBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        assert!(*digest != self.panicking, "by intent");
        self.blobs.open(digest)
    }
}

#[test]
fn an_image_whose_indexing_panics_is_refused_and_the_next_image_is_indexed() {
    let lines = capture_process();
    let [bad, good] = [1, 2].map(|seed| images::Image::tree(seed, &TreeOptions::default()).image);
    let blobs = PanickingBlobs {
        blobs: MemoryBlobs::default(),
        panicking: bad.blobs[1].digest,
    };
    for image in [&bad, &good] {
        blobs.blobs.put_image(image);
    }
    let folder = tempfile::tempdir().unwrap();
    let background = BackgroundWork::default();
    let mut config = Config::new(folder.path(), 64 << 20, 16 << 20);
    config.background = background.clone();
    let bundle_server = BundleServer::open(config, Arc::new(blobs)).unwrap();
    let offer = |image: &images::Image| {
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry.example/app".into(),
        });
        let state = || bundle_server.state(&image.root);
        wait::until("the end of the indexing", || {
            !matches!(state(), State::Working(_))
        });
        state()
    };
    let State::Refused(why) = offer(&bad) else {
        panic!("{:?}", bundle_server.state(&bad.root));
    };
    assert!(why.contains("a bug of pierhead"), "{why}");
    assert_eq!(offer(&good), State::Ready);
    assert!(matches!(bundle_server.state(&bad.root), State::Refused(_)));
    bundle_server.close();
    assert_eq!(
        background.panics().counts(),
        [(BackgroundTask::BundleServer, 1)]
    );
    let logged = lines.with("indexing of an image panicked");
    assert!(
        matches!(&logged[..], [line] if line.contains("ERROR") && line.contains(&bad.root.to_string())),
        "{}",
        lines.text()
    );
}
