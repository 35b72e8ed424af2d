//! Test of the log lines about images that the bundle server has indexed or refused, and about a
//! damaged TOC (table of contents). This test runs in its own process, since background threads
//! write the log of the whole process.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

use std::sync::Arc;

use pierhead_bundle_server::{BundleServer, Config, Image, State};
use pierhead_testkit::images::{self, TreeOptions};
use pierhead_testkit::log::capture_process;
use pierhead_testkit::source::MemoryBlobs;
use pierhead_testkit::wait::until;

fn wait_until_settled(bundle_server: &BundleServer, image: &images::Image) -> State {
    let is_settled = || !matches!(bundle_server.state(&image.root), State::Working(_));
    until("a settled image", is_settled);
    bundle_server.state(&image.root)
}

#[test]
fn a_ready_image_and_a_damaged_toc_have_one_log_line_each() {
    let lines = capture_process();
    let images = [1, 2].map(|seed| images::Image::tree(seed, &TreeOptions::default()).image);
    let blobs = Arc::<MemoryBlobs>::default();
    for image in &images {
        blobs.put_image(image);
    }
    // The second image has an invalid layer.
    let [ready, refused] = &images;
    blobs.put(refused.blobs[1].digest, b"no layer".to_vec());
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(folder.path(), 64 << 20, 16 << 20);
    let open = || BundleServer::open(config.clone(), blobs.clone()).unwrap();
    let offer = |bundle_server: &BundleServer, image: &images::Image| {
        bundle_server.offer(Image {
            manifest: image.root,
            repository: "registry.example/app".into(),
        });
        wait_until_settled(bundle_server, image)
    };
    let bundle_server = open();
    assert_eq!(offer(&bundle_server, ready), State::Ready);
    assert!(matches!(offer(&bundle_server, refused), State::Refused(_)));
    // The server writes the log line after the state of the image changes, so the test closes the
    // server before it reads the log.
    bundle_server.close();
    drop(bundle_server);
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

    // Without the image database and its plans, the server indexes the image again, and reads the
    // damaged TOC.
    for lost in ["directory", "plans"] {
        std::fs::remove_dir_all(folder.path().join(lost)).unwrap();
    }
    let name = ready.root.to_string().replace(':', "-");
    let toc = folder.path().join("index/tables").join(name);
    let mut damaged = std::fs::read(&toc).unwrap();
    damaged[9] ^= 1;
    std::fs::write(&toc, damaged).unwrap();
    let bundle_server = open();
    assert_eq!(offer(&bundle_server, ready), State::Ready);
    bundle_server.close();
    let found = lines.with("the TOC of an image is damaged; pierhead rebuilds it");
    assert!(
        matches!(&found[..], [line] if line.contains("WARN")),
        "{}",
        lines.text()
    );
}
