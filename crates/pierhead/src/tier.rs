//! The fast tier, from its configuration: which file, what it turned out to be, and the log in it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pierhead_cache::FastTier;
use pierhead_cache::tier::{Options, PmemTier};
use pierhead_pmem::{Class, Error, Log, Recovered, Region, Report};

use crate::config::{Config, Tier, TierKind};
use pierhead_host::pressure::Resource;

/// Opens it; `None` when there is to be none. Blocks: a file that is new is allocated.
///
/// # Errors
/// For people: what is wrong with the file, and the fix.
pub(crate) fn open(tier: &Tier) -> Result<Option<FastTier>, TierError> {
    let Some(region) = region(tier)? else {
        return Ok(None);
    };
    let (report, len) = (region.report().clone(), region.report().len);
    let file = region.sendable().map(std::fs::File::try_clone);
    let file = file.transpose().map_err(|error| TierError {
        what: format!("{}: {error}", report.path.display()),
        fix: SEE.to_owned(),
    })?;
    let opened = Log::open(region, pierhead_pmem::Options::default());
    let (log, found) = opened.map_err(|error| TierError::of(&report.path, &error))?;
    tracing::info!(
        class = %report.class, blobs = found.entries,
        "fast tier: {report}"
    );
    let damaged = found.dropped + found.damaged;
    if damaged > 0 {
        tracing::warn!(
            damaged,
            path = %report.path.display(),
            "parts of the fast tier are damaged: what lay there is served from the disk, or fetched again; when that comes \
             again, look into the kernel's log and replace the medium"
        );
    }
    // Heads and the ends of segments take their part.
    let most = log.capacity() / 32 * 31;
    let options = Options {
        most,
        volatile: !report.class.is_persistent(),
        write_back_rate: tier.write_back_rate.unwrap_or(0),
        damaged,
        ..Options::new(most)
    };
    Ok(Some(FastTier {
        tier: Arc::new(PmemTier::new(log, file)),
        options,
        placement: tier.placement,
        class: report.class.as_str(),
        capacity: len,
    }))
}

/// What the file of the tier takes of the memory that this process is bound to, once it is made: nothing on a disk.
pub(crate) fn bytes_in_memory(tier: &Tier) -> u64 {
    let path = tier.path.as_ref();
    let path = path.filter(|path| tier.kind != TierKind::Off && pierhead_pmem::is_memory(path));
    path.map_or(0, |_| tier.size)
}

/// Whether the limit shrinks while the host is short of memory: a tier in memory gives some back.
pub(crate) fn follows_pressure(config: &Config) -> bool {
    let is_watched = config.limits.pause_under.contains(&Resource::Memory);
    is_watched && config.tier.kind == TierKind::File && bytes_in_memory(&config.tier) > 0
}

/// The file, mapped; `None` when there is to be none. One that was made and will not do is removed.
fn region(tier: &Tier) -> Result<Option<Region>, TierError> {
    let (TierKind::Pmem | TierKind::File, Some(path)) = (tier.kind, &tier.path) else {
        return Ok(None);
    };
    let is_new = !path.exists();
    let config = pierhead_pmem::Config {
        path: path.clone(),
        size: tier.size,
    };
    let region = Region::open(&config).map_err(|error| TierError::of(path, &error))?;
    let report = region.report();
    if tier.kind == TierKind::Pmem && report.class != Class::Pmem {
        let what = format!("{report}: no persistent memory");
        if is_new {
            // While it is locked: nobody else can have begun to use it.
            let _ = std::fs::remove_file(path);
        }
        return Err(TierError {
            what,
            fix: "tier.kind = \"file\" uses it as what it is".to_owned(),
        });
    }
    Ok(Some(region))
}

/// What [`open`] would find in a file that is there, or why it would refuse it; `None` when there is to be none. Reads what a
/// start reads, and changes nothing.
///
/// # Errors
/// As [`open`].
pub(crate) fn look(tier: &Tier) -> Result<Option<(Report, Recovered)>, TierError> {
    let Some(region) = region(tier)? else {
        return Ok(None);
    };
    let found = Log::look(&region, pierhead_pmem::Options::default());
    let found = found.map_err(|error| TierError::of(region.path(), &error))?;
    Ok(Some((region.report().clone(), found)))
}

/// Why there is no fast tier: for people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TierError {
    /// Names the file.
    pub(crate) what: String,
    /// What is to be done.
    pub(crate) fix: String,
}

/// Where nothing better is known.
const SEE: &str = "fix that and start it again; until then all is served from the disk";

impl TierError {
    fn of(path: &Path, error: &Error) -> Self {
        let shown = path.display();
        let what = error.to_string();
        let fix = match error {
            Error::Format { .. } => format!(
                "`rm {shown}` while no pierhead uses it; what the disk does not have of it is fetched again"
            ),
            Error::Busy(_) => format!(
                "`fuser {shown}` tells whose it is: give each pierhead a tier.path of its own"
            ),
            Error::Medium { .. } => format!(
                "see the kernel's log (`dmesg`); replace the medium, or `rm {shown}` to have a new one made elsewhere on it"
            ),
            _ => SEE.to_owned(),
        };
        Self {
            what: match what.contains(&*path.to_string_lossy()) {
                true => what,
                false => format!("{shown}: {what}"),
            },
            fix,
        }
    }
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tier_in_memory_follows_pressure() {
        let mut config = Config::with_data("/nowhere".into());
        for (kind, path, follows) in [
            (TierKind::Off, "/dev/shm/pierhead-never-made", false),
            (TierKind::Pmem, "/dev/shm/pierhead-never-made", false),
            (TierKind::File, "/dev/shm/pierhead-never-made", true),
            (TierKind::File, "/proc/pierhead-never-made", false),
        ] {
            config.tier.kind = kind;
            config.tier.path = Some(path.into());
            assert_eq!(
                follows_pressure(&config),
                follows,
                "{} {path}",
                kind.as_str()
            );
        }
        config.tier.path = Some("/dev/shm/pierhead-never-made".into());
        config.limits.pause_under = vec![Resource::Cpu];
        assert!(!follows_pressure(&config), "nobody looks at memory");
    }
}
