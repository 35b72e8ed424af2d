//! Test of the log lines about images that the bundle server has indexed or refused. This test runs
//! in its own process, since background threads write the log of the whole process.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pierhead_bundle_server::{BundleServer, Config, Image, State};
use pierhead_oci::Digest;
use pierhead_testkit::images::{self, TreeOptions};
use pierhead_testkit::log::capture_process;
use pierhead_testkit::source::MemoryBlob;
use pierhead_toc::{Blob, Blobs};

struct MemoryBlobs(HashMap<Digest, Arc<MemoryBlob>>);

impl Blobs for MemoryBlobs {
    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        let found = self.0.get(digest).cloned();
        Ok(found.map(|bytes| bytes as Arc<dyn Blob>))
    }
}

#[test]
fn a_ready_image_has_one_log_line() {
    let lines = capture_process();
    let images = [1, 2].map(|seed| images::Image::tree(seed, &TreeOptions::default()).image);
    let mut blobs = HashMap::new();
    for image in &images {
        let contents = image.blobs.iter().map(|it| (it.digest, &it.bytes));
        let documents = image.documents.iter().map(|it| (it.digest, &it.bytes));
        for (digest, bytes) in contents.chain(documents) {
            blobs.insert(digest, Arc::new(MemoryBlob(bytes.to_vec())));
        }
    }
    // The second image has an invalid layer.
    let [ready, refused] = &images;
    let broken = Arc::new(MemoryBlob(b"no layer".to_vec()));
    blobs.insert(refused.blobs[1].digest, broken);
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(folder.path(), 64 << 20, 16 << 20);
    let bundle_server = BundleServer::open(config, Arc::new(MemoryBlobs(blobs))).unwrap();
    for image in &images {
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry.example/app".into(),
        });
        while let State::Working(_) = bundle_server.state(&image.root) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(bundle_server.state(&ready.root), State::Ready);
    assert!(matches!(
        bundle_server.state(&refused.root),
        State::Refused(_)
    ));
    // The server writes the log line after the state of the image changes, so the test closes the
    // server before it reads the log.
    bundle_server.close();
    let found = lines.with("image ready for bundles");
    let [line] = &found[..] else {
        panic!("{}", lines.text());
    };
    let expected = format!(
        "image=registry.example/app manifest={} seconds=",
        ready.root
    );
    assert!(line.contains("INFO") && line.contains(&expected), "{line}");
    let (_, seconds) = line.split_once("seconds=").unwrap();
    assert!(seconds.trim().parse::<f64>().is_ok(), "{line}");
}
