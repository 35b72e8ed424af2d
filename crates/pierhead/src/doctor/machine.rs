//! Checks the host: memory, open files, the clock, and CPU instructions for hashes and encryption.

use std::fs;
use std::path::Path;

use pierhead_oci::units::human_bytes;
use rustix::process::{Resource, getrlimit};

use super::report::Finding;
use crate::config::Config;
use crate::serve::clock_check;
use pierhead_host::clock;
use pierhead_host::machine::MemoryHeadroom;

/// Memory in bytes that pierhead needs under load, including page cache for cache hits.
const MIN_MEMORY_BYTES: u64 = 256 << 20;
/// Number of open files that pierhead needs in addition to the files of connections.
const OWN_FILES: u64 = 256;

/// Runs all checks of the host.
pub(crate) fn check(config: &Config) -> Vec<Finding> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limit = getrlimit(Resource::Nofile).maximum;
    check_memory(&text, MemoryHeadroom::read(Path::new("/")))
        .into_iter()
        .chain(check_open_files(limit, config))
        .chain(
            clock_check::problem(clock::now())
                .map(|problem| Finding::clock_error("clock", problem)),
        )
        .chain(cpu_instructions(&features()))
        .collect()
}

/// CPU instructions that speed up hashes and encryption. The libraries detect these instructions at
/// run time as well, so that one program runs on all CPUs.
#[cfg(target_arch = "aarch64")]
fn features() -> [(&'static str, bool); 3] {
    use std::arch::is_aarch64_feature_detected as has;
    [
        ("SHA-256", has!("sha2")),
        ("CRC-32", has!("crc")),
        ("AES", has!("aes")),
    ]
}

/// CPU instructions that speed up hashes and encryption, on x86-64.
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

/// Reports which of these CPU instructions the CPU has. A missing instruction is no warning, since
/// the operator cannot add instructions to a CPU.
fn cpu_instructions(features: &[(&str, bool)]) -> Option<Finding> {
    let names = |is_present: bool| {
        let names = features.iter().filter(|it| it.1 == is_present);
        names.map(|it| it.0).collect::<Vec<_>>().join(", ")
    };
    let what = match (names(true), names(false)) {
        (used, missing) if used.is_empty() && missing.is_empty() => return None,
        (used, missing) if missing.is_empty() => format!("has instructions for {used}"),
        (used, missing) if used.is_empty() => {
            format!("has no instructions for {missing}, which is slower")
        }
        (used, missing) => {
            format!("has instructions for {used}, and none for {missing}, which is slower")
        }
    };
    Some(Finding::ok("cpu", what))
}

/// Checks the available memory: the available memory of the host, or the lowest headroom of the
/// cgroups if that headroom is lower.
fn check_memory(meminfo: &str, headroom: Option<MemoryHeadroom>) -> Option<Finding> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    let available = kib << 10;
    // In a cgroup with a small memory limit, an eighth of the limit must be free.
    let (free, needed, of) = match headroom.filter(|headroom| headroom.left < available) {
        Some(MemoryHeadroom { limit, left }) => {
            let of = format!(", of the cgroup's limit of {}", human_bytes(limit));
            (left, MIN_MEMORY_BYTES.min(limit / 8), of)
        }
        None => (available, MIN_MEMORY_BYTES, String::new()),
    };
    let what = format!("{} of memory available{of}", human_bytes(free));
    Some(if free < needed {
        let fix = "pierhead serves frequent reads from the page cache: raise the memory of the host, pod or unit, or stop other programs";
        Finding::warn("memory", what, fix)
    } else {
        Finding::ok("memory", what)
    })
}

/// Checks the hard limit of open files, since the daemon raises its soft limit to the hard limit. A
/// request needs one file for the client's connection, one for the blob, and on a cache miss one
/// for the connection to the upstream.
fn check_open_files(limit: Option<u64>, config: &Config) -> Option<Finding> {
    let connections = u64::try_from(config.limits.connections).unwrap_or(u64::MAX);
    let needed = connections.saturating_mul(2).saturating_add(OWN_FILES);
    let limit = limit?;
    if limit >= needed {
        return Some(Finding::ok("open files", format!("at most {limit}")));
    }
    Some(Finding::warn(
        "open files",
        format!("at most {limit}, and limits.connections = {connections} may need {needed}"),
        format!(
            "set LimitNOFILE={needed} in the systemd unit (`ulimit -Hn` in a shell), or lower `limits.connections`"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Severity;

    #[test]
    fn missing_cpu_instructions_are_listed() {
        let reported = |features: &[(&str, bool)]| cpu_instructions(features).map(|it| it.what);
        let both = reported(&[("SHA-256", true), ("AES", true)]);
        assert_eq!(both.as_deref(), Some("has instructions for SHA-256, AES"));
        let one = reported(&[("SHA-256", false), ("AES", true)]).unwrap_or_default();
        assert!(one.contains("for AES, and none for SHA-256"), "{one}");
        assert_eq!(reported(&[]), None);
    }

    #[test]
    fn low_memory_and_few_open_files_are_warnings() {
        let level = |text| check_memory(text, None).map(|finding| finding.level);
        assert_eq!(
            level("MemTotal: 1 kB\nMemAvailable:   8000000 kB\n"),
            Some(Severity::Ok)
        );
        assert_eq!(level("MemAvailable:     1000 kB\n"), Some(Severity::Warn));
        assert_eq!(level(""), None);
        // In a pod, doctor compares with the limit of the pod's cgroup, and not with the memory of
        // the node.
        let pod = |limit: u64, left: u64| {
            let headroom = Some(MemoryHeadroom {
                limit: limit << 20,
                left: left << 20,
            });
            check_memory("MemAvailable:   8000000 kB\n", headroom).unwrap()
        };
        let tight = pod(512, 40);
        assert_eq!(tight.level, Severity::Warn);
        assert!(
            tight.what.starts_with("40.0 MiB") && tight.what.contains("limit of 512.0 MiB"),
            "{}",
            tight.what
        );
        assert_eq!(pod(256, 100).level, Severity::Ok);
        assert!(pod(1 << 20, 1 << 19).what.starts_with("7.6 GiB"));
        let config = Config::with_data("/nowhere".into());
        let level = |limit| check_open_files(limit, &config).map(|finding| finding.level);
        assert_eq!(level(Some(1024)), Some(Severity::Warn));
        assert_eq!(level(Some(1 << 20)), Some(Severity::Ok));
        assert_eq!(level(None), None);
    }
}
