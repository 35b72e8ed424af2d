//! Checks the share of the host that pierhead takes: profile, CPU quota, pressure and network
//! interface.

use std::net::IpAddr;
use std::path::Path;

use pierhead_oci::units::human_bytes;

use super::report::Finding;
use crate::config::Config;
use pierhead_host::machine::Machine;
use pierhead_host::network_interface::{MissingAddress, NetworkInterface};
use pierhead_host::pressure::{PressureReader, Resource};

/// Memory limit of a cgroup in bytes below which pierhead needs a profile or `limits.memory`, since
/// the default limits may need more memory.
const MIN_LIMIT_WITHOUT_PROFILE: u64 = 1 << 30;

/// Runs all checks of profile, CPU quota, pressure and network interface. Blocks the thread for
/// some microseconds.
pub(crate) fn check(config: &Config, machine: &Machine) -> Vec<Finding> {
    let is_measured = |resource| PressureReader::find(resource, Path::new("/")).is_some();
    let seen = config.network.interface.as_deref().map(|name| {
        let seen = NetworkInterface::read(name);
        check_interface(name, config, &seen.unwrap_or_default())
    });
    [check_profile(config, machine), check_quota(machine)]
        .into_iter()
        .flatten()
        .chain(check_pressure(config, is_measured))
        .chain(seen)
        .collect()
}

fn check_profile(config: &Config, machine: &Machine) -> Option<Finding> {
    let memory = config.limits.memory.map(human_bytes);
    let limit = machine.memory_limit.map(|limit| limit.amount);
    Some(match (config.profile, memory) {
        (Some(profile), memory) => {
            let memory = memory.unwrap_or_default();
            let what = format!("{}, with limits.memory = {memory}", profile.name);
            Finding::ok("profile", what)
        }
        (None, Some(memory)) => {
            let what = format!("none; limits.memory = {memory}");
            Finding::ok("profile", what)
        }
        (None, None) => {
            let limit = limit.filter(|limit| *limit < MIN_LIMIT_WITHOUT_PROFILE)?;
            let what = format!(
                "none, and the cgroup has {} of memory: the default limits do not depend on it",
                human_bytes(limit)
            );
            let fix = "pass `--profile small`, or set limits.memory (docs/explanation/profiles.md)";
            Finding::warn("profile", what, fix)
        }
    })
}

fn check_quota(machine: &Machine) -> Option<Finding> {
    let thousandths = machine.cpu_limit.as_ref()?.amount;
    let (whole, tenths) = (thousandths / 1000, thousandths % 1000 / 100);
    let what = format!("the CPU quota of the cgroup is {whole}.{tenths} cores");
    Some(Finding::ok("quota", what))
}

/// Checks that the kernel measures the pressure on each resource of `limits.pause_under`.
fn check_pressure(config: &Config, is_measured: impl Fn(Resource) -> bool) -> Option<Finding> {
    let wanted = &config.limits.pause_under;
    if wanted.is_empty() {
        return None;
    }
    let names = |measured: bool| {
        let these = wanted.iter().filter(|it| is_measured(**it) == measured);
        these.map(|it| it.name()).collect::<Vec<_>>().join(", ")
    };
    Some(match names(false) {
        all if all.is_empty() => {
            let what = format!("background work pauses under pressure on {}", names(true));
            Finding::ok("pressure", what)
        }
        missing => Finding::warn(
            "pressure",
            format!(
                "the kernel does not measure pressure on {missing}, so background work never pauses under it"
            ),
            "boot the kernel with psi=1 (CONFIG_PSI), or remove the resource from limits.pause_under",
        ),
    })
}

fn check_interface(name: &str, config: &Config, seen: &NetworkInterface) -> Finding {
    let is_ipv4_wildcard = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if ip.is_unspecified());
    let needs_ipv4 = config
        .listen
        .iter()
        .any(|address| is_ipv4_wildcard(address.ip()));
    let has_ipv4 = seen.usable.iter().any(IpAddr::is_ipv4);
    let lacking = match () {
        () if needs_ipv4 && !has_ipv4 => Some(MissingAddress::Ipv4),
        () if seen.usable.is_empty() => Some(MissingAddress::Any),
        () => None,
    };
    match lacking {
        Some(lacking) => Finding::fail(
            "interface",
            seen.explain(name, &lacking),
            format!(
                "bring the interface up: a start waits 30 s for {} and then fails with exit code 68",
                config.key_locations.describe("network.interface")
            ),
        ),
        None => {
            let all: Vec<_> = seen.usable.iter().map(ToString::to_string).collect();
            Finding::ok("interface", format!("{name}: {}", all.join(" ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::doctor::report::Severity;
    use pierhead_host::cgroup::Version;
    use pierhead_host::machine::{CpuLimit, MemoryLimit};
    use pierhead_host::profile::Profile;

    fn limited(memory: u64, quota: u64) -> Machine {
        Machine {
            memory_limit: Some(MemoryLimit {
                amount: memory,
                version: Version::Two,
            }),
            cpu_limit: Some(CpuLimit {
                amount: quota,
                period: Duration::from_millis(100),
                stat: "cpu.stat".into(),
            }),
            ..Machine::default()
        }
    }

    #[test]
    fn profile_and_quota_of_the_cgroup_are_reported() {
        let mut config = Config::with_data("/nowhere".into());
        let pod = limited(256 << 20, 500);
        let reported = check_profile(&config, &pod).unwrap();
        assert_eq!(reported.level, Severity::Warn);
        assert!(reported.what.contains("256.0 MiB"), "{}", reported.what);
        assert_eq!(check_profile(&config, &limited(8 << 30, 500)), None);
        config.limits.memory = Some(200 << 20);
        let reported = check_profile(&config, &pod).unwrap();
        assert!(reported.level == Severity::Ok && reported.what.contains("200.0 MiB"));
        config.profile = Profile::named("small");
        assert!(
            check_profile(&config, &pod)
                .unwrap()
                .what
                .starts_with("small, ")
        );
        let reported = check_quota(&pod).unwrap();
        assert!(reported.what.contains("0.5 cores"), "{}", reported.what);
        assert_eq!(check_quota(&Machine::default()), None);
    }

    #[test]
    fn a_resource_without_pressure_data_is_a_warning() {
        let mut config = Config::with_data("/nowhere".into());
        config.limits.pause_under = vec![Resource::Cpu, Resource::Memory];
        let reported = check_pressure(&config, |resource| resource == Resource::Cpu).unwrap();
        assert_eq!(reported.level, Severity::Warn);
        assert!(
            reported.what.contains("pressure on memory,"),
            "{}",
            reported.what
        );
        let reported = check_pressure(&config, |_| true).unwrap();
        assert!(reported.level == Severity::Ok && reported.what.contains("cpu, memory"));
        config.limits.pause_under.clear();
        assert_eq!(check_pressure(&config, |_| false), None);
    }

    #[test]
    fn an_interface_without_a_usable_address_is_a_failure() {
        let config = Config::with_data("/nowhere".into());
        let gone = check_interface("p0", &config, &NetworkInterface::default());
        assert_eq!(gone.level, Severity::Fail);
        assert!(gone.what.contains("no interface \"p0\""), "{}", gone.what);
        let six: Vec<IpAddr> = vec!["2001:db8::1".parse().unwrap()];
        let seen = NetworkInterface {
            exists: true,
            up: true,
            usable: six,
            ..NetworkInterface::default()
        };
        let reported = check_interface("p0", &config, &seen);
        assert!(reported.level == Severity::Fail && reported.what.contains("no IPv4"));
        let mut both = config;
        both.listen = vec!["[::]:5000".parse().unwrap()];
        let reported = check_interface("p0", &both, &seen);
        assert_eq!(
            (reported.level, &*reported.what),
            (Severity::Ok, "p0: 2001:db8::1")
        );
    }
}
