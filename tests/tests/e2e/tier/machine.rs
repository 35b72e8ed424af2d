//! The tier on persistent memory, over three starts of a machine, the second of which loses its power.
//!
//! `cargo xtask pmem-vm` runs it in a guest, one boot a call: `PIERHEAD_PMEM_BOOT` says which, `PIERHEAD_PMEM_DIR` names a
//! folder on persistent memory, `PIERHEAD_PMEM_DISK` one on a disk, and the last boot gets in `PIERHEAD_PMEM_LAST` what the
//! second said last. Elsewhere all three run on what this machine has, and the daemon is killed in place of the machine.

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

use super::{NEVER_DRAINED, diagnosis, drained, image, lasting, number, region, section, stat};
use crate::ask::{behind, committed, get, pull};

/// Of the second boot: more than one segment of the log each, so that the cut comes in the middle of one.
fn later(number: u64) -> Image {
    Image::random(1000 + number, &[70_000, 2_500_000, 150_000])
}

fn name(number: u64) -> String {
    format!("library/later{number}")
}

#[test]
fn over_three_boots() -> Result<()> {
    let Some(fast) = env::var_os("PIERHEAD_PMEM_DIR") else {
        let folder = lasting()?;
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

/// What outlives the machine.
struct Site {
    /// `tier.kind`.
    kind: &'static str,
    /// The folder of the region.
    fast: PathBuf,
    /// The daemon's folder.
    data: PathBuf,
}

impl Site {
    fn start(&self, drain: &str) -> Result<(Background, Pierhead)> {
        let section = section(&region(&self.fast), "64MiB", drain);
        let section = section.replace("\"file\"", &format!("{:?}", self.kind));
        // By itself it would keep more free than the guest's disk has.
        let small = "cache.size = \"256MiB\"\ncache.min_free = \"1MiB\"";
        let options = Options::new().config(small).config(&section);
        behind(FakeRegistry::builder(), options.data(&self.data))
    }

    /// Drains one image and ends; finds it, stages another, and is killed before anything of that is drained.
    fn first(&self) -> Result<()> {
        let (hub, mut pierhead) = self.start("")?;
        let (one, two) = (image(1), image(2));
        hub.push("library/drained", "1", &one);
        pull(&pierhead, "library/drained", &one)?;
        let before = drained(&pierhead)?;
        // The manifest and the layers that the rules put there.
        ensure!(number(&before, "blobs")? >= 3, "{before}");
        self.named(&pierhead)?;
        pierhead.stop()?;
        assert_eq!(committed(&self.data)?, one.digests().count());

        let (hub, mut pierhead) = self.start(NEVER_DRAINED)?;
        found(&hub, &pierhead, "library/drained", &one)?;
        hub.push("library/staged", "1", &two);
        pull(&pierhead, "library/staged", &two)?;
        let after = stat(&pierhead)?;
        assert_eq!(number(&after, "queue")?, 3, "{after}");
        pierhead.kill()
    }

    /// The class is the same wherever it is told.
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

    /// Finds both, and pulls more until it is killed, or `most`: the number of the last that it said.
    fn second(&self, most: u64) -> Result<u64> {
        let (hub, mut pierhead) = self.start(NEVER_DRAINED)?;
        found(&hub, &pierhead, "library/drained", &image(1))?;
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
            // Whoever pulls the plug waits for it.
            fs::write(self.fast.join("pulling"), "")?;
        }
        pierhead.kill()?;
        Ok(most - 1)
    }

    /// Finds all that was said, from one place or the other, and fetches what was not.
    fn third(&self, last: u64) -> Result<()> {
        let (hub, mut pierhead) = self.start("")?;
        let now = stat(&pierhead)?;
        if now["class"] == "volatile" {
            println!("skipped: {} is no disk", self.fast.display());
            return Ok(());
        }
        ensure!(number(&now, "damaged")? == 0, "a cut is no damage: {now}");
        found(&hub, &pierhead, "library/drained", &image(1))?;
        found(&hub, &pierhead, "library/staged", &image(2))?;
        // Each takes an emulated machine a while.
        let step = usize::try_from(last / 5)?.max(1);
        for number in (0..last).step_by(step).chain([last]) {
            found(&hub, &pierhead, &name(number), &later(number))?;
        }
        // What was being written when the power went: of each blob the whole, or none.
        let cut = later(last + 1);
        hub.push(&name(last + 1), "1", &cut);
        pull(&pierhead, &name(last + 1), &cut)?;
        drained(&pierhead)?;
        pierhead.stop()?;
        // Each is what its name says.
        let there = committed(&self.data)?;
        ensure!(there >= usize::try_from(last)?, "{there} blobs");
        Ok(())
    }
}

/// Nothing of it is asked of the upstream.
fn found(hub: &Background, pierhead: &Pierhead, name: &str, image: &Image) -> Result<()> {
    hub.push(name, "1", image);
    pull(pierhead, name, image)?;
    for blob in &image.blobs {
        ensure!(hub.gets_of(&blob.digest) == 0, "{name} was fetched again");
    }
    Ok(())
}
