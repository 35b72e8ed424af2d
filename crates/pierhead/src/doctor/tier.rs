//! The fast tier: whether it can be had, and what becomes of it when the power goes.

use super::daemon::ServedTier;
use super::report::Finding;
use crate::config::{Config, Tier, TierKind};
use crate::tier;

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

fn judge(served: &ServedTier, wanted: &Tier) -> Finding {
    let Some(class) = &served.class else {
        let why = match wanted.path.as_ref().filter(|path| path.exists()) {
            Some(_) => tier::region(wanted).err(),
            None => None,
        };
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        return Finding::fail(
            "tier",
            format!("the daemon serves without the one that is configured{why}"),
            "the log of its start says why; mend that and start it again",
        );
    };
    let what = format!("in use, {class}");
    if served.damaged > 0.0 {
        let what = format!("{what}; {} blobs were damaged on it", served.damaged);
        let mend =
            "the kernel's log tells of a medium that fails: replace it, or set tier.kind = \"off\"";
        return Finding::warn("tier", what, mend);
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
        let told = look(&config, None).unwrap();
        assert_eq!(told.level, Level::Fail, "it is in use");
        let class = made.class;
        drop(made);
        let told = look(&config, None).unwrap();
        assert!(told.level == Level::Ok && told.what.contains(class));
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
        };
        let told = look(&config, Some(&served)).unwrap();
        assert!(told.level == Level::Ok && told.what.contains("volatile"));
        served.damaged = 2.0;
        assert_eq!(look(&config, Some(&served)).unwrap().level, Level::Warn);
        served.class = None;
        let told = look(&config, Some(&served)).unwrap();
        assert!(told.level == Level::Fail && told.what.contains("without"));
        config.tier.size = 64 << 20;
        assert!(tier::open(&config.tier).is_err(), "made with another size");
    }
}
