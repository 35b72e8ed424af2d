//! The whole story in one short test: what the program for the DPU's cores is put through under emulation, where
//! all of them would take hours.

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{images::Image, registry::FakeRegistry};
use pierhead_tests::{layout::architecture, pierhead::Options, place};

use crate::{
    ask,
    bundles::{Files, content, http, image, pull, same},
};

/// Small: an emulator hashes a hundredth of what its machine does.
fn files(version: u64) -> Files {
    let mut files: Files = (0..8)
        .map(|nth| (format!("usr/share/doc-{nth}"), content(nth, 3000)))
        .collect();
    files.push(("usr/lib/large.so".to_owned(), content(100, 200_000)));
    files.push(("usr/bin/app".to_owned(), content(200 + version, 20_000)));
    files
}

#[test]
fn pulled_through_kept_bundled_and_there_after_a_restart() -> Result<()> {
    let images: [Image; 2] = [image(&files(1)), image(&files(2))];
    let (hub, mut pierhead) = ask::behind(FakeRegistry::builder(), Options::new())?;
    for (version, image) in ["1", "2"].into_iter().zip(&images) {
        hub.push("library/app", version, image);
    }
    let each_once = || {
        for blob in images.iter().flat_map(|image| &image.blobs) {
            let gets = hub.gets_of(&blob.digest);
            ensure!(gets == 1, "the upstream gave {} {gets} times", blob.digest);
        }
        Ok(())
    };

    // Pulled through, and from the cache.
    ask::pull(&pierhead, "library/app", &images[0])?;
    ask::pull(&pierhead, "library/app", &images[0])?;

    // As bundles: the first whole, the second as what has changed.
    let folder = place::scratch("smoke")?;
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
        same(&root, &files(version))?;
        std::fs::remove_dir_all(&root)?;
    }
    ensure!(received[1] < received[0] / 2, "{received:?}");
    each_once()?;

    // The same again from what is on the disk: there is no upstream any more.
    hub.stop();
    pierhead.restart()?;
    ask::pull(&pierhead, "library/app", &images[0])?;
    let again = folder.path().join("again");
    let report = pull(&http(pierhead.address()), "2", &again, &form)?;
    ensure!(report["method"] == "bundle", "{report}");
    same(&root, &files(2))?;
    each_once()
}
