//! The fast tier: whether it can be had, and what becomes of it when the power goes.

use std::path::Path;

use super::daemon::ServedTier;
use super::report::Finding;
use crate::config::{Config, Tier, TierKind};
use crate::tier::{self, TierError};

/// Nothing without one. A file that is not there yet is not made. `served`: what the daemon has, if it runs.
pub(crate) fn look(config: &Config, served: Option<&ServedTier>) -> Option<Finding> {
    let wanted = &config.tier;
    if wanted.kind == TierKind::Off {
        return None;
    }
    if let Some(served) = served {
        return Some(judge(served, wanted));
    }
    let path = wanted.path.as_ref();
    if let Some(path) = path.filter(|path| !path.exists()) {
        let what = format!("{} is made at the start", path.display());
        return Some(Finding::ok("tier", what));
    }
    Some(match tier::look(wanted) {
        Ok(Some((report, found))) => {
            let damaged = found.dropped + found.damaged;
            if damaged > 0 {
                let what = format!("{report}; {damaged} parts of it are damaged");
                return Some(Finding::warn("tier", what, MEDIUM));
            }
            Finding::ok("tier", format!("{report}; {} blobs", found.entries))
        }
        Ok(None) => return None,
        Err(TierError { what, fix }) => Finding::fail("tier", what, fix),
    })
}

/// What lay there is served from the disk, or fetched again.
const MEDIUM: &str = "the kernel's log (`dmesg`) tells of a medium that fails: replace it, or set tier.kind = \"off\"";

fn judge(served: &ServedTier, wanted: &Tier) -> Finding {
    let Some(class) = &served.class else {
        let what = "the daemon serves without the one that is configured";
        let why = match wanted.path.as_ref().filter(|path| path.exists()) {
            Some(_) => tier::look(wanted).err(),
            None => None,
        };
        return match why {
            Some(TierError { what: why, fix }) => Finding::fail(
                "tier",
                format!("{what}: {why}"),
                format!("{fix}; then start it again"),
            ),
            None => Finding::fail(
                "tier",
                what,
                "the log of its start says why; fix that and start it again",
            ),
        };
    };
    if served.failed {
        let path = wanted.path.as_deref().unwrap_or(Path::new("tier.path"));
        let what = format!(
            "{}: the medium failed while it was in use: nothing goes there, and all is served from the disk",
            path.display()
        );
        let fix = "see the kernel's log (`dmesg`), and replace the medium or set tier.kind = \"off\"; a restart of pierhead opens it anew";
        return Finding::fail("tier", what, fix);
    }
    let what = format!("in use, {class}");
    if served.damaged > 0.0 {
        let what = format!("{what}; {} blobs were damaged on it", served.damaged);
        return Finding::warn("tier", what, MEDIUM);
    }
    Finding::ok("tier", what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Level;

    #[test]
    fn it_is_told_what_it_is_and_never_made() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        assert!(look(&config, None).is_none(), "off is nothing to tell");
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::File;
        config.tier.path = Some(path.clone());
        config.tier.size = 32 << 20;
        assert!(look(&config, None).is_some() && !path.exists());
        let made = tier::open(&config.tier).unwrap().unwrap();
        let reported = look(&config, None).unwrap();
        assert_eq!(reported.level, Level::Fail, "it is in use");
        let class = made.class;
        drop(made);
        let reported = look(&config, None).unwrap();
        assert!(reported.level == Level::Ok && reported.what.contains(class));
        if class != "pmem" {
            config.tier.kind = TierKind::Pmem;
            assert!(
                tier::open(&config.tier).is_err(),
                "it is no persistent memory"
            );
        }
        let mut served = ServedTier {
            class: Some("volatile".to_owned()),
            damaged: 0.0,
            failed: false,
        };
        let reported = look(&config, Some(&served)).unwrap();
        assert!(reported.level == Level::Ok && reported.what.contains("volatile"));
        served.damaged = 2.0;
        assert_eq!(look(&config, Some(&served)).unwrap().level, Level::Warn);
        served.failed = true;
        let reported = look(&config, Some(&served)).unwrap();
        assert!(reported.level == Level::Fail && reported.what.contains("failed"));
        served.class = None;
        let reported = look(&config, Some(&served)).unwrap();
        assert!(reported.level == Level::Fail && reported.what.contains("without"));
        config.tier.size = 64 << 20;
        assert!(tier::open(&config.tier).is_err(), "made with another size");
    }

    /// In the words in which it refuses it.
    #[test]
    fn what_a_start_refuses_is_told_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::File;
        config.tier.path = Some(path.clone());
        config.tier.size = 64 << 20;
        drop(tier::open(&config.tier).unwrap().unwrap());
        let made = std::fs::read(&path).unwrap();
        let refused = |config: &Config, fix: &str| {
            let before = std::fs::read(&path).unwrap();
            let reported = look(config, None).unwrap();
            let TierError { what, fix: theirs } = tier::open(&config.tier).err().expect("refused");
            assert_eq!((reported.level, &reported.what), (Level::Fail, &what));
            assert_eq!(reported.fix, Some(theirs));
            let shown = path.display().to_string();
            assert!(what.contains(&shown), "{what}");
            let all = format!("{what}: {}", reported.fix.unwrap());
            assert!(all.contains(fix), "{all}");
            assert!(before == std::fs::read(&path).unwrap(), "it was written to");
        };
        // Made for another size, both ways.
        config.tier.size = 32 << 20;
        refused(&config, "`rm /");
        config.tier.size = 128 << 20;
        refused(&config, "remove it");
        config.tier.size = 64 << 20;
        let mut damaged = made.clone();
        damaged[8] = 77;
        damaged[4096 + 8] = 77;
        std::fs::write(&path, &damaged).unwrap();
        refused(&config, "`rm /");
        std::fs::write(&path, &made).unwrap();
        assert_eq!(look(&config, None).unwrap().level, Level::Ok);
    }

    #[test]
    fn a_file_that_was_made_for_nothing_is_removed() {
        // Every Linux has one that is memory.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::Pmem;
        config.tier.path = Some(path.clone());
        config.tier.size = 32 << 20;
        let unfit = tier::open(&config.tier).err().expect("it is memory");
        assert!(unfit.what.contains("no persistent memory"), "{unfit}");
        assert!(unfit.fix.contains("tier.kind = \"file\""), "{unfit}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // What was there before is somebody's.
        std::fs::write(&path, vec![0; 32 << 20]).unwrap();
        assert!(tier::open(&config.tier).is_err() && path.exists());
    }
}
