//! The fast tier: whether it can be had, and what becomes of it when the power goes.

use super::report::Finding;
use crate::config::{Config, TierKind};
use crate::tier;

/// Nothing without one. A file that is not there yet is not made. `serving`: whether the daemon runs, which has it open.
pub(crate) fn look(config: &Config, serving: bool) -> Option<Finding> {
    let wanted = &config.tier;
    if wanted.kind == TierKind::Off {
        return None;
    }
    let path = wanted.path.as_ref();
    if let Some(path) = path.filter(|path| !path.exists()) {
        let what = format!("{} is made at the start", path.display());
        return Some(Finding::ok("tier", what));
    }
    if serving {
        let what = "in use: `pierhead cache tier stat` says what it is";
        return Some(Finding::ok("tier", what));
    }
    Some(match tier::region(wanted) {
        Ok(Some(region)) => Finding::ok("tier", region.report().to_string()),
        Ok(None) => return None,
        Err(error) => Finding::fail(
            "tier",
            error,
            "until it is mended, all is served from the disk",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Level;

    #[test]
    fn it_is_told_what_it_is_and_never_made() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_data(folder.path().to_owned());
        assert!(look(&config, false).is_none(), "off is nothing to tell");
        let path = folder.path().join("tier");
        config.tier.kind = TierKind::File;
        config.tier.path = Some(path.clone());
        config.tier.size = 32 << 20;
        assert!(look(&config, false).is_some() && !path.exists());
        let made = tier::open(&config.tier).unwrap().unwrap();
        let told = look(&config, false).unwrap();
        assert_eq!(told.level, Level::Fail, "it is in use");
        let class = made.class;
        drop(made);
        let told = look(&config, false).unwrap();
        assert!(told.level == Level::Ok && told.what.contains(class));
        if class != "pmem" {
            config.tier.kind = TierKind::Pmem;
            assert!(
                tier::open(&config.tier).is_err(),
                "it is no persistent memory"
            );
        }
        config.tier.size = 64 << 20;
        assert!(tier::open(&config.tier).is_err(), "made with another size");
    }
}
