//! One short end-to-end test of pull, cache, bundles and restart. `cargo xtask test` runs this test
//! under emulation for aarch64, where all end-to-end tests would take hours.

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{images::Image, registry::FakeRegistry};
use pierhead_tests::{layout::architecture, paths, pierhead::Options};

use crate::{
    bundles::{Files, assert_same_files, content, http, image, pull},
    requests,
};

/// The files are small, because an emulator hashes at a hundredth of the native speed.
fn files(version: u64) -> Files {
    let mut files: Files = (0..8)
        .map(|nth| (format!("usr/share/doc-{nth}"), content(nth, 3000)))
        .collect();
    files.push(("usr/lib/large.so".to_owned(), content(100, 200_000)));
    files.push(("usr/bin/app".to_owned(), content(200 + version, 20_000)));
    files
}

#[test]
fn pull_cache_bundles_and_restart_work() -> Result<()> {
    let images: [Image; 2] = [image(&files(1)), image(&files(2))];
    let (hub, mut pierhead) = requests::start_in_front(FakeRegistry::builder(), Options::new())?;
    for (version, image) in ["1", "2"].into_iter().zip(&images) {
        hub.push("library/app", version, image);
    }
    let each_once = || {
        for blob in images.iter().flat_map(|image| &image.blobs) {
            let gets = hub.gets_of(&blob.digest);
            ensure!(gets == 1, "the upstream sent {} {gets} times", blob.digest);
        }
        Ok(())
    };

    // Pull through pierhead, then from the cache.
    requests::pull(&pierhead, "library/app", &images[0])?;
    requests::pull(&pierhead, "library/app", &images[0])?;

    // Pulls both versions as bundles: the first complete, the second with only the changed files.
    let folder = paths::scratch("smoke")?;
    let (store, root) = (folder.path().join("store"), folder.path().join("root"));
    let platform = format!("linux/{}", architecture());
    let form = ["--as", "rootfs", "--platform", &platform, "--output"];
    let form = [&form[..], &[root.to_str().context("UTF-8")?]].concat();
    let mut received = Vec::new();
    for version in [1, 2] {
        let report = pull(
            &http(pierhead.address()),
            &version.to_string(),
            &store,
            &form,
        )?;
        ensure!(report["method"] == "bundle", "{report}");
        received.push(report["bytes_received"].as_u64().context("bytes")?);
        assert_same_files(&root, &files(version))?;
        std::fs::remove_dir_all(&root)?;
    }
    ensure!(received[1] < received[0] / 2, "{received:?}");
    each_once()?;

    // Pulls again after a restart, with the upstream stopped.
    hub.stop();
    pierhead.restart()?;
    requests::pull(&pierhead, "library/app", &images[0])?;
    let again = folder.path().join("again");
    let report = pull(&http(pierhead.address()), "2", &again, &form)?;
    ensure!(report["method"] == "bundle", "{report}");
    assert_same_files(&root, &files(2))?;
    each_once()
}
