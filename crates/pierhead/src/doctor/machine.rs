//! The machine: memory, open files, the clock, and what its processor helps with.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use pierhead_oci::units::human_bytes;
use rustix::process::{Resource, getrlimit};

use super::report::Finding;
use crate::clock;
use crate::config::Config;
use pierhead_host::machine::MemoryHeadroom;

/// What pierhead needs under load, with room for the page cache that makes hits fast.
const MEMORY: u64 = 256 << 20;
/// Files of its own beside those of connections.
const FILES: u64 = 256;

/// All of it.
pub(crate) fn look(config: &Config) -> Vec<Finding> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limit = getrlimit(Resource::Nofile).maximum;
    memory(&text, MemoryHeadroom::read(Path::new("/")))
        .into_iter()
        .chain(files(limit, config))
        .chain(clock::wrong(SystemTime::now()).map(|what| Finding::clock("clock", what)))
        .chain(instructions(&features()))
        .collect()
}

/// Instructions for what pierhead does with every byte. The crates that use them ask the same when they run, so
/// that one program serves processors with and without.
#[cfg(target_arch = "aarch64")]
fn features() -> [(&'static str, bool); 3] {
    use std::arch::is_aarch64_feature_detected as has;
    [
        ("SHA-256", has!("sha2")),
        ("CRC-32", has!("crc")),
        ("AES", has!("aes")),
    ]
}

/// The same of another processor.
#[cfg(target_arch = "x86_64")]
fn features() -> [(&'static str, bool); 3] {
    use std::arch::is_x86_feature_detected as has;
    [
        ("SHA-256", has!("sha") && has!("sse4.1")),
        ("CRC-32", has!("sse4.2")),
        ("AES", has!("aes")),
    ]
}

#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
fn features() -> [(&'static str, bool); 0] {
    []
}

/// Nothing can be done about it, so it is told and not judged.
fn instructions(features: &[(&str, bool)]) -> Option<Finding> {
    let names = |wanted: bool| {
        let names = features.iter().filter(|it| it.1 == wanted);
        names.map(|it| it.0).collect::<Vec<_>>().join(", ")
    };
    let what = match (names(true), names(false)) {
        (used, missing) if used.is_empty() && missing.is_empty() => return None,
        (used, missing) if missing.is_empty() => format!("has instructions for {used}"),
        (used, missing) if used.is_empty() => {
            format!("has no instructions for {missing}: done by others, slower")
        }
        (used, missing) => {
            format!("has instructions for {used}, not for {missing}: done by others, slower")
        }
    };
    Some(Finding::ok("processor", what))
}

/// What the machine has to give, or the tightest of the cgroups if that is less.
fn memory(meminfo: &str, room: Option<MemoryHeadroom>) -> Option<Finding> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    let available = kib << 10;
    // A group that was made small is not short of what it was never meant to have.
    let (had, needed, of) = match room.filter(|room| room.left < available) {
        Some(MemoryHeadroom { limit, left }) => {
            let of = format!(", of the cgroup's limit of {}", human_bytes(limit));
            (left, MEMORY.min(limit / 8), of)
        }
        None => (available, MEMORY, String::new()),
    };
    let what = format!("{} of memory can be had{of}", human_bytes(had));
    Some(if had < needed {
        let fix = "what is read often is served from free memory: give the machine (the pod, the unit) more, or stop what takes it";
        Finding::warn("memory", what, fix)
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
    fn what_the_processor_lacks_is_told() {
        let reported = |features: &[(&str, bool)]| instructions(features).map(|it| it.what);
        let both = reported(&[("SHA-256", true), ("AES", true)]);
        assert_eq!(both.as_deref(), Some("has instructions for SHA-256, AES"));
        let one = reported(&[("SHA-256", false), ("AES", true)]).unwrap_or_default();
        assert!(one.contains("for AES, not for SHA-256"), "{one}");
        assert_eq!(reported(&[]), None);
    }

    #[test]
    fn both_are_judged() {
        let level = |text| memory(text, None).map(|finding| finding.level);
        assert_eq!(
            level("MemTotal: 1 kB\nMemAvailable:   8000000 kB\n"),
            Some(Level::Ok)
        );
        assert_eq!(level("MemAvailable:     1000 kB\n"), Some(Level::Warn));
        assert_eq!(level(""), None);
        // Of a pod the limit counts, however much the node has.
        let pod = |limit: u64, left: u64| {
            let room = Some(MemoryHeadroom {
                limit: limit << 20,
                left: left << 20,
            });
            memory("MemAvailable:   8000000 kB\n", room).unwrap()
        };
        let tight = pod(512, 40);
        assert_eq!(tight.level, Level::Warn);
        assert!(
            tight.what.starts_with("40.0 MiB") && tight.what.contains("limit of 512.0 MiB"),
            "{}",
            tight.what
        );
        assert_eq!(pod(256, 100).level, Level::Ok);
        assert!(pod(1 << 20, 1 << 19).what.starts_with("7.6 GiB"));
        let config = Config::with_data("/nowhere".into());
        let level = |limit| files(limit, &config).map(|finding| finding.level);
        assert_eq!(level(Some(1024)), Some(Level::Warn));
        assert_eq!(level(Some(1 << 20)), Some(Level::Ok));
        assert_eq!(level(None), None);
    }
}
