//! The machine: memory, open files and the clock.

use std::fs;
use std::time::SystemTime;

use rustix::process::{Resource, getrlimit};

use super::report::Finding;
use crate::clock;
use crate::config::{Config, human_bytes};

/// What pierhead needs under load, with room for the page cache that makes hits fast.
const MEMORY: u64 = 256 << 20;
/// Files of its own beside those of connections.
const FILES: u64 = 256;

/// All of it.
pub(crate) fn look(config: &Config) -> Vec<Finding> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limit = getrlimit(Resource::Nofile).maximum;
    memory(&text)
        .into_iter()
        .chain(files(limit, config))
        .chain(clock::wrong(SystemTime::now()).map(|what| Finding::clock("clock", what)))
        .collect()
}

fn memory(meminfo: &str) -> Option<Finding> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    let available = kib << 10;
    let what = format!("{} of memory can be had", human_bytes(available));
    Some(if available < MEMORY {
        let mend = "what is read often is served from free memory: give the machine more, or stop what takes it";
        Finding::warn("memory", what, mend)
    } else {
        Finding::ok("memory", what)
    })
}

/// serve raises the soft limit to the hard one, so that the latter counts. A client's connection, its blob,
/// and for a miss the connection to the upstream.
fn files(limit: Option<u64>, config: &Config) -> Option<Finding> {
    let connections = u64::try_from(config.limits.connections).unwrap_or(u64::MAX);
    let needed = connections.saturating_mul(2).saturating_add(FILES);
    let limit = limit?;
    if limit >= needed {
        return Some(Finding::ok("open files", format!("{limit} may be open")));
    }
    Some(Finding::warn(
        "open files",
        format!("{limit} may be open, and limits.connections = {connections} may need {needed}"),
        format!(
            "set LimitNOFILE={needed} in the unit (`ulimit -Hn` in a shell), or `limits.connections` lower"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Level;

    #[test]
    fn both_are_judged() {
        let level = |text| memory(text).map(|finding| finding.level);
        assert_eq!(
            level("MemTotal: 1 kB\nMemAvailable:   8000000 kB\n"),
            Some(Level::Ok)
        );
        assert_eq!(level("MemAvailable:     1000 kB\n"), Some(Level::Warn));
        assert_eq!(level(""), None);
        let config = Config::with_data("/nowhere".into());
        let level = |limit| files(limit, &config).map(|finding| finding.level);
        assert_eq!(level(Some(1024)), Some(Level::Warn));
        assert_eq!(level(Some(1 << 20)), Some(Level::Ok));
        assert_eq!(level(None), None);
    }
}
