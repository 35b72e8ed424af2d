//! Test of a tier on persistent memory over three boots of a machine. The second boot ends in a
//! power loss. `cargo xtask pmem-vm` runs the test in a virtual machine, one call per boot.
//! `PIERHEAD_PMEM_BOOT` is the number of the boot, `PIERHEAD_PMEM_DIR` a folder on persistent
//! memory, `PIERHEAD_PMEM_DISK` a folder on disk. The third boot gets the last output of the second
//! boot in `PIERHEAD_PMEM_LAST`. Without these variables, all three boots run on this machine, and
//! the daemon is killed instead of the machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{
    images::Image,
    registry::{Background, FakeRegistry},
};
use pierhead_tests::pierhead::{Options, Pierhead};

use super::{
    NO_WRITE_BACK, diagnosis, disk_folder, image, number, region, section, stat,
    wait_for_write_back,
};
use crate::requests::{committed, get, pull, start_in_front};

/// Images of the second boot. Each is larger than a segment of the tier's log, so that the power
/// loss interrupts an image.
fn later(number: u64) -> Image {
    Image::random(1000 + number, &[70_000, 2_500_000, 150_000])
}

fn name(number: u64) -> String {
    format!("library/later{number}")
}

#[test]
fn over_three_boots() -> Result<()> {
    let Some(fast) = env::var_os("PIERHEAD_PMEM_DIR") else {
        let folder = disk_folder()?;
        let site = Site {
            kind: "file",
            fast: folder.path().to_owned(),
            data: folder.path().join("data"),
        };
        site.first()?;
        let last = site.second(3)?;
        return site.third(last);
    };
    let disk = env::var_os("PIERHEAD_PMEM_DISK").context("PIERHEAD_PMEM_DISK is not set")?;
    let site = Site {
        kind: "pmem",
        fast: fast.into(),
        data: Path::new(&disk).join("data"),
    };
    match env::var("PIERHEAD_PMEM_BOOT")?.as_str() {
        "1" => site.first(),
        "2" => site.second(u64::MAX).map(drop),
        _ => site.third(env::var("PIERHEAD_PMEM_LAST")?.parse()?),
    }
}

/// The folders that survive a boot.
struct Site {
    /// `tier.kind`.
    kind: &'static str,
    /// The folder of the tier's region.
    fast: PathBuf,
    /// The data folder of the daemon.
    data: PathBuf,
}

impl Site {
    fn start(&self, write_back_rate: &str) -> Result<(Background, Pierhead)> {
        let section = section(&region(&self.fast), "64MiB", write_back_rate);
        let section = section.replace("\"file\"", &format!("{:?}", self.kind));
        // The default of `cache.min_free` is larger than the disk of the guest.
        let small = "cache.size = \"256MiB\"\ncache.min_free = \"1MiB\"";
        let options = Options::new().config(small).config(&section);
        start_in_front(FakeRegistry::builder(), options.data(&self.data))
    }

    /// First boot: writes one image back and shuts down. After that, the daemon stages another
    /// image and is killed before the write-back of this image.
    fn first(&self) -> Result<()> {
        let (hub, mut pierhead) = self.start("")?;
        let (one, two) = (image(1), image(2));
        hub.push("library/written-back", "1", &one);
        pull(&pierhead, "library/written-back", &one)?;
        let before = wait_for_write_back(&pierhead)?;
        // The tier has the manifest, and the layers that the placement puts on the tier.
        ensure!(number(&before, "blobs")? >= 3, "{before}");
        self.named(&pierhead)?;
        pierhead.stop()?;
        assert_eq!(committed(&self.data)?, one.digests().count());

        let (hub, mut pierhead) = self.start(NO_WRITE_BACK)?;
        found(&hub, &pierhead, "library/written-back", &one)?;
        hub.push("library/staged", "1", &two);
        pull(&pierhead, "library/staged", &two)?;
        let after = stat(&pierhead)?;
        assert_eq!(number(&after, "queue")?, 3, "{after}");
        pierhead.kill()
    }

    /// Asserts that the log, `cache tier stat` and doctor report the same class of memory.
    fn named(&self, pierhead: &Pierhead) -> Result<()> {
        let stat = stat(pierhead)?;
        let class = stat["class"].as_str().context("no class")?;
        if self.kind == "pmem" {
            assert_eq!(class, "pmem");
        }
        let log = pierhead.log();
        ensure!(log.contains(&format!(" bytes, {class}, flush: ")), "{log}");
        let metrics = String::from_utf8(get(pierhead.admin(), "/metrics")?.body.into())?;
        let info = format!("pierhead_cache_tier_info{{class={class:?}}} 1\n");
        ensure!(metrics.contains(&info), "{metrics}");
        let (level, what) = diagnosis(pierhead)?;
        ensure!(level == "ok" && what.ends_with(class), "{level}: {what}");
        Ok(())
    }

    /// Second boot: finds both images of the first boot, then pulls images until the machine is
    /// killed, at most `most`. Returns the number of the last image.
    fn second(&self, most: u64) -> Result<u64> {
        let (hub, mut pierhead) = self.start(NO_WRITE_BACK)?;
        found(&hub, &pierhead, "library/written-back", &image(1))?;
        if stat(&pierhead)?["class"] != "volatile" {
            let hits = number(&stat(&pierhead)?, "hits")?;
            found(&hub, &pierhead, "library/staged", &image(2))?;
            let now = stat(&pierhead)?;
            ensure!(number(&now, "hits")? >= hits + 2, "from elsewhere: {now}");
        }
        println!();
        for number in 0..most {
            let (name, image) = (name(number), later(number));
            hub.push(&name, "1", &image);
            pull(&pierhead, &name, &image)?;
            println!("pulled {number}");
            // The host waits for this file before it cuts the power of the guest.
            fs::write(self.fast.join("pulling"), "")?;
        }
        pierhead.kill()?;
        Ok(most - 1)
    }

    /// Third boot: finds all reported images on the tier or the disk, and fetches the others.
    fn third(&self, last: u64) -> Result<()> {
        let (hub, mut pierhead) = self.start("")?;
        let now = stat(&pierhead)?;
        if now["class"] == "volatile" {
            println!("skipped: {} is no disk", self.fast.display());
            return Ok(());
        }
        ensure!(
            number(&now, "damaged")? == 0,
            "a power loss counts as damage: {now}"
        );
        found(&hub, &pierhead, "library/written-back", &image(1))?;
        found(&hub, &pierhead, "library/staged", &image(2))?;
        // Each image takes several seconds on an emulated machine.
        let step = usize::try_from(last / 5)?.max(1);
        for number in (0..last).step_by(step).chain([last]) {
            found(&hub, &pierhead, &name(number), &later(number))?;
        }
        // The image that was pulled during the power loss: each of its blobs is complete or
        // missing.
        let cut = later(last + 1);
        hub.push(&name(last + 1), "1", &cut);
        pull(&pierhead, &name(last + 1), &cut)?;
        wait_for_write_back(&pierhead)?;
        pierhead.stop()?;
        // The contents of each blob match its digest.
        let there = committed(&self.data)?;
        ensure!(there >= usize::try_from(last)?, "{there} blobs");
        Ok(())
    }
}

/// Asserts that the image is cached: a pull sends no request to the upstream.
fn found(hub: &Background, pierhead: &Pierhead, name: &str, image: &Image) -> Result<()> {
    hub.push(name, "1", image);
    pull(pierhead, name, image)?;
    for blob in &image.blobs {
        ensure!(hub.gets_of(&blob.digest) == 0, "{name} was fetched again");
    }
    Ok(())
}
