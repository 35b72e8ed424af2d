//! Opens the fast tier of the cache: maps the file of the tier, checks the kind of the medium, and
//! opens the log in the file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pierhead_cache::FastTier;
use pierhead_cache::tier::{Options, PmemTier};
use pierhead_pmem::{Class, Error, Log, RecoveryReport, Region, Report};

use crate::config::{Config, Tier, TierKind};
use pierhead_host::pressure::Resource;

/// Opens the fast tier; returns `None` if the tier is off. Blocks the thread, since a new file gets
/// all of its space at once.
///
/// # Errors
/// The error has the problem of the file and its fix.
pub(crate) fn open(tier: &Tier) -> Result<Option<FastTier>, TierError> {
    let Some(region) = region(tier)? else {
        return Ok(None);
    };
    let (report, len) = (region.report().clone(), region.report().len);
    let file = region.sendable().map(std::fs::File::try_clone);
    let file = file.transpose().map_err(|error| TierError {
        what: format!("{}: {error}", report.path.display()),
        fix: DEFAULT_FIX.to_owned(),
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
            "parts of the fast tier are corrupt: pierhead serves these blobs from the disk, or fetches them again; if this \
             repeats, check the kernel's log and replace the medium"
        );
    }
    // Headers and the ends of segments take about 1/32 of the log, so the rest is the maximum.
    let max_bytes = log.capacity() / 32 * 31;
    let options = Options {
        max_limit: max_bytes,
        volatile: !report.class.is_persistent(),
        write_back_rate: tier.write_back_rate.unwrap_or(0),
        damaged,
        ..Options::new(max_bytes)
    };
    Ok(Some(FastTier {
        tier: Arc::new(PmemTier::new(log, file)),
        options,
        placement: tier.placement,
        class: report.class.as_str(),
        capacity: len,
    }))
}

/// Whether the limit of the tier shrinks under memory pressure: only a tier in memory can free
/// memory.
pub(crate) fn follows_pressure(config: &Config) -> bool {
    let is_watched = config.limits.pause_under.contains(&Resource::Memory);
    is_watched && config.tier.kind == TierKind::File && config.tier.bytes_in_memory() > 0
}

/// Maps the file of the tier into memory. Returns `None` if the tier is off. After an error,
/// removes a file that this call has created.
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
            // This process holds the lock on the file, so no other process uses the file.
            let _ = std::fs::remove_file(path);
        }
        return Err(TierError {
            what,
            fix: "set tier.kind = \"file\" to use it without persistence".to_owned(),
        });
    }
    Ok(Some(region))
}

/// Reads the file of the tier as [`open`] does, but changes nothing. Returns `None` if the tier is
/// off.
///
/// # Errors
/// The same errors as from [`open`].
pub(crate) fn inspect(tier: &Tier) -> Result<Option<(Report, RecoveryReport)>, TierError> {
    let Some(region) = region(tier)? else {
        return Ok(None);
    };
    let found = Log::check(&region, pierhead_pmem::Options::default());
    let found = found.map_err(|error| TierError::of(region.path(), &error))?;
    Ok(Some((region.report().clone(), found)))
}

/// The reason why the fast tier cannot be opened, as a message for the operator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TierError {
    /// The problem, with the path of the file.
    pub(crate) what: String,
    /// The fix of the problem, for the operator.
    pub(crate) fix: String,
}

/// The advice for errors without a more specific fix.
const DEFAULT_FIX: &str = "fix the cause and restart pierhead; until then it serves from the disk";

impl TierError {
    fn of(path: &Path, error: &Error) -> Self {
        let shown = path.display();
        let what = error.to_string();
        let fix = match error {
            Error::Format { .. } => format!(
                "stop pierhead and run `rm {shown}`; pierhead fetches blobs again that are not on the disk"
            ),
            Error::Busy(_) => format!(
                "`fuser {shown}` names the process that uses it: set another tier.path for each pierhead"
            ),
            Error::Medium { .. } => format!(
                "see the kernel's log (`dmesg`); replace the medium, or run `rm {shown}`: a new file gets other blocks of the medium"
            ),
            _ => DEFAULT_FIX.to_owned(),
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
    fn only_the_limit_of_a_tier_in_memory_follows_the_pressure() {
        let mut config = Config::with_data("/nowhere".into());
        for (kind, path, follows) in [
            (TierKind::Off, "/dev/shm/pierhead-missing", false),
            (TierKind::Pmem, "/dev/shm/pierhead-missing", false),
            (TierKind::File, "/dev/shm/pierhead-missing", true),
            (TierKind::File, "/proc/pierhead-missing", false),
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
        config.tier.path = Some("/dev/shm/pierhead-missing".into());
        config.limits.pause_under = vec![Resource::Cpu];
        assert!(
            !follows_pressure(&config),
            "the pressure on memory is not watched"
        );
    }
}
