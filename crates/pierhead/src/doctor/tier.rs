//! Checks the fast tier of the cache: whether pierhead can open the file of the tier, and whether
//! the medium has errors.

use std::path::Path;

use super::daemon::ServedTier;
use super::report::Finding;
use crate::config::{Config, Tier, TierKind};
use crate::serve::tier::{self, TierError};

/// Checks the fast tier without creating the file of the tier. `served` is the tier of the running
/// daemon. Returns `None` if the tier is off.
pub(crate) fn check(config: &Config, served: Option<&ServedTier>) -> Option<Finding> {
    let wanted = &config.tier;
    if wanted.kind == TierKind::Off {
        return None;
    }
    if let Some(served) = served {
        return Some(check_served(served, wanted));
    }
    let path = wanted.path.as_ref();
    if let Some(path) = path.filter(|path| !path.exists()) {
        let what = format!("pierhead creates {} at the start", path.display());
        return Some(Finding::ok("tier", what));
    }
    Some(match tier::inspect(wanted) {
        Ok(Some((report, found))) => {
            let damaged = found.dropped + found.damaged;
            if damaged > 0 {
                let what = format!("{report}; {damaged} parts are corrupt");
                return Some(Finding::warn("tier", what, MEDIUM_FIX));
            }
            Finding::ok("tier", format!("{report}; {} blobs", found.entries))
        }
        Ok(None) => return None,
        Err(TierError { what, fix }) => Finding::fail("tier", what, fix),
    })
}

/// The advice for corrupt data on the tier. pierhead serves the affected blobs from the disk, or
/// fetches them again.
const MEDIUM_FIX: &str = "if the kernel's log (`dmesg`) has errors of the medium, replace the medium, or set tier.kind = \"off\"";

fn check_served(served: &ServedTier, wanted: &Tier) -> Finding {
    let Some(class) = &served.class else {
        let what = "the daemon runs without the configured tier";
        let cause = match wanted.path.as_ref().filter(|path| path.exists()) {
            Some(_) => tier::inspect(wanted).err(),
            None => None,
        };
        return match cause {
            Some(TierError { what: cause, fix }) => Finding::fail(
                "tier",
                format!("{what}: {cause}"),
                format!("{fix}; then restart pierhead"),
            ),
            None => Finding::fail(
                "tier",
                what,
                "the log of the start has the cause; fix it and restart pierhead",
            ),
        };
    };
    if served.failed {
        let path = wanted.path.as_deref().unwrap_or(Path::new("tier.path"));
        let what = format!(
            "{}: the medium failed while in use: pierhead uses the disk only",
            path.display()
        );
        let fix = "see the kernel's log (`dmesg`); replace the medium, or set tier.kind = \"off\"; then restart pierhead";
        return Finding::fail("tier", what, fix);
    }
    let what = format!("in use, {class}");
    if served.damaged > 0.0 {
        let what = format!("{what}; {} blobs were corrupt", served.damaged);
        return Finding::warn("tier", what, MEDIUM_FIX);
    }
    Finding::ok("tier", what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Severity;

    #[test]
    fn the_check_reports_the_class_and_creates_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        assert!(check(&config, None).is_none(), "the tier is off");
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::File;
        config.tier.path = Some(path.clone());
        config.tier.size = 32 << 20;
        assert!(check(&config, None).is_some() && !path.exists());
        let opened = tier::open(&config.tier).unwrap().unwrap();
        let reported = check(&config, None).unwrap();
        assert_eq!(reported.level, Severity::Fail, "another process uses it");
        let class = opened.class;
        drop(opened);
        let reported = check(&config, None).unwrap();
        assert!(reported.level == Severity::Ok && reported.what.contains(class));
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
        let reported = check(&config, Some(&served)).unwrap();
        assert!(reported.level == Severity::Ok && reported.what.contains("volatile"));
        served.damaged = 2.0;
        assert_eq!(check(&config, Some(&served)).unwrap().level, Severity::Warn);
        served.failed = true;
        let reported = check(&config, Some(&served)).unwrap();
        assert!(reported.level == Severity::Fail && reported.what.contains("failed"));
        served.class = None;
        let reported = check(&config, Some(&served)).unwrap();
        assert!(reported.level == Severity::Fail && reported.what.contains("without"));
        config.tier.size = 64 << 20;
        assert!(
            tier::open(&config.tier).is_err(),
            "the file has another size"
        );
    }

    #[test]
    fn the_check_reports_the_error_of_a_start_and_changes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::File;
        config.tier.path = Some(path.clone());
        config.tier.size = 64 << 20;
        drop(tier::open(&config.tier).unwrap().unwrap());
        let original = std::fs::read(&path).unwrap();
        let assert_refused = |config: &Config, fix: &str| {
            let before = std::fs::read(&path).unwrap();
            let reported = check(config, None).unwrap();
            let TierError {
                what,
                fix: fix_of_start,
            } = tier::open(&config.tier).err().expect("refused");
            assert_eq!((reported.level, &reported.what), (Severity::Fail, &what));
            assert_eq!(reported.fix, Some(fix_of_start));
            let shown = path.display().to_string();
            assert!(what.contains(&shown), "{what}");
            let all = format!("{what}: {}", reported.fix.unwrap());
            assert!(all.contains(fix), "{all}");
            assert!(before == std::fs::read(&path).unwrap(), "the file changed");
        };
        // The file of the tier is first larger and then smaller than `tier.size`.
        config.tier.size = 32 << 20;
        assert_refused(&config, "`rm /");
        config.tier.size = 128 << 20;
        assert_refused(&config, "remove it");
        config.tier.size = 64 << 20;
        let mut damaged = original.clone();
        damaged[8] = 77;
        damaged[4096 + 8] = 77;
        std::fs::write(&path, &damaged).unwrap();
        assert_refused(&config, "`rm /");
        std::fs::write(&path, &original).unwrap();
        assert_eq!(check(&config, None).unwrap().level, Severity::Ok);
    }

    #[test]
    fn a_new_file_that_is_no_persistent_memory_is_removed() {
        // On every Linux, /dev/shm is a file system in memory.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::Pmem;
        config.tier.path = Some(path.clone());
        config.tier.size = 32 << 20;
        let unfit = tier::open(&config.tier)
            .err()
            .expect("it is no persistent memory");
        assert!(unfit.what.contains("no persistent memory"), "{unfit}");
        assert!(unfit.fix.contains("tier.kind = \"file\""), "{unfit}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // The check does not delete a file that existed before.
        std::fs::write(&path, vec![0; 32 << 20]).unwrap();
        assert!(tier::open(&config.tier).is_err() && path.exists());
    }
}
