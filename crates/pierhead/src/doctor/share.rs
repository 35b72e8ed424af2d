//! What pierhead takes of the machine: its profile, what the cgroup gives, what it gives way to, and by which interface clients come.

use std::net::IpAddr;
use std::path::Path;

use pierhead_oci::units::human_bytes;

use super::report::Finding;
use crate::config::Config;
use pierhead_host::machine::Machine;
use pierhead_host::network_interface::{MissingAddress, NetworkInterface};
use pierhead_host::pressure::{PressureReader, Resource};

/// With less of a limit than this, what is planned without regard to it does not fit.
const ROOMY: u64 = 1 << 30;

/// All of it. Blocks for some microseconds.
pub(crate) fn look(config: &Config, machine: &Machine) -> Vec<Finding> {
    let counts = |resource| PressureReader::find(resource, Path::new("/")).is_some();
    let seen = config.network.interface.as_deref().map(|name| {
        let seen = NetworkInterface::read(name);
        interface(name, config, &seen.unwrap_or_default())
    });
    [profile(config, machine), quota(machine)]
        .into_iter()
        .flatten()
        .chain(pressure(config, counts))
        .chain(seen)
        .collect()
}

fn profile(config: &Config, machine: &Machine) -> Option<Finding> {
    let planned = config.limits.memory.map(human_bytes);
    let limit = machine.memory_limit.map(|limit| limit.amount);
    Some(match (config.profile, planned) {
        (Some(profile), planned) => {
            let planned = planned.unwrap_or_default();
            let what = format!("{}, which plans with {planned} of memory", profile.name);
            Finding::ok("profile", what)
        }
        (None, Some(planned)) => {
            let what = format!("none; limits.memory plans with {planned}");
            Finding::ok("profile", what)
        }
        (None, None) => {
            let limit = limit.filter(|limit| *limit < ROOMY)?;
            let what = format!(
                "none, and the cgroup has {} of memory: what is planned does not follow from that",
                human_bytes(limit)
            );
            let fix = "`--profile small`, or limits.memory (docs/explanation/profiles.md)";
            Finding::warn("profile", what, fix)
        }
    })
}

fn quota(machine: &Machine) -> Option<Finding> {
    let thousandths = machine.cpu_limit.as_ref()?.amount;
    let (whole, tenths) = (thousandths / 1000, thousandths % 1000 / 100);
    let what = format!("the cgroup's quota keeps {whole}.{tenths} cores busy");
    Some(Finding::ok("quota", what))
}

/// `counts`: whether the kernel tells of a resource.
fn pressure(config: &Config, counts: impl Fn(Resource) -> bool) -> Option<Finding> {
    let wanted = &config.limits.pause_under;
    if wanted.is_empty() {
        return None;
    }
    let names = |counted: bool| {
        let these = wanted.iter().filter(|it| counts(**it) == counted);
        these.map(|it| it.name()).collect::<Vec<_>>().join(", ")
    };
    Some(match names(false) {
        all if all.is_empty() => {
            let what = format!("background work gives way under that of {}", names(true));
            Finding::ok("pressure", what)
        }
        missing => Finding::warn(
            "pressure",
            format!(
                "the kernel does not count that of {missing}: background work never gives way to it"
            ),
            "psi=1 on the kernel's command line (CONFIG_PSI), or take it out of limits.pause_under",
        ),
    })
}

fn interface(name: &str, config: &Config, seen: &NetworkInterface) -> Finding {
    let any_four = |ip: IpAddr| matches!(ip, IpAddr::V4(ip) if ip.is_unspecified());
    let needs_four = config.listen.iter().any(|address| any_four(address.ip()));
    let has_four = seen.usable.iter().any(IpAddr::is_ipv4);
    let lacking = match () {
        () if needs_four && !has_four => Some(MissingAddress::Ipv4),
        () if seen.usable.is_empty() => Some(MissingAddress::Any),
        () => None,
    };
    match lacking {
        Some(lacking) => Finding::fail(
            "interface",
            seen.explain(name, &lacking),
            format!(
                "{} is waited for at a start, and then it fails (68)",
                config.places.of("network.interface")
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
    use crate::doctor::report::Level;
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
    fn what_the_group_gives_is_told_and_what_is_planned_by_it() {
        let mut config = Config::with_data("/nowhere".into());
        let pod = limited(256 << 20, 500);
        let reported = profile(&config, &pod).unwrap();
        assert_eq!(reported.level, Level::Warn);
        assert!(reported.what.contains("256.0 MiB"), "{}", reported.what);
        assert_eq!(profile(&config, &limited(8 << 30, 500)), None);
        config.limits.memory = Some(200 << 20);
        let reported = profile(&config, &pod).unwrap();
        assert!(reported.level == Level::Ok && reported.what.contains("200.0 MiB"));
        config.profile = Profile::named("small");
        assert!(profile(&config, &pod).unwrap().what.starts_with("small, "));
        let reported = quota(&pod).unwrap();
        assert!(reported.what.contains("0.5 cores"), "{}", reported.what);
        assert_eq!(quota(&Machine::default()), None);
    }

    #[test]
    fn what_the_kernel_does_not_count_is_told() {
        let mut config = Config::with_data("/nowhere".into());
        config.limits.pause_under = vec![Resource::Cpu, Resource::Memory];
        let reported = pressure(&config, |resource| resource == Resource::Cpu).unwrap();
        assert_eq!(reported.level, Level::Warn);
        assert!(
            reported.what.contains("that of memory:"),
            "{}",
            reported.what
        );
        let reported = pressure(&config, |_| true).unwrap();
        assert!(reported.level == Level::Ok && reported.what.contains("cpu, memory"));
        config.limits.pause_under.clear();
        assert_eq!(pressure(&config, |_| false), None);
    }

    #[test]
    fn an_interface_that_no_client_can_come_by_fails() {
        let config = Config::with_data("/nowhere".into());
        let gone = interface("p0", &config, &NetworkInterface::default());
        assert_eq!(gone.level, Level::Fail);
        assert!(gone.what.contains("no interface \"p0\""), "{}", gone.what);
        let six: Vec<IpAddr> = vec!["2001:db8::1".parse().unwrap()];
        let seen = NetworkInterface {
            exists: true,
            up: true,
            usable: six,
            ..NetworkInterface::default()
        };
        let reported = interface("p0", &config, &seen);
        assert!(reported.level == Level::Fail && reported.what.contains("no IPv4"));
        let mut both = config;
        both.listen = vec!["[::]:5000".parse().unwrap()];
        let reported = interface("p0", &both, &seen);
        assert_eq!(
            (reported.level, &*reported.what),
            (Level::Ok, "p0: 2001:db8::1")
        );
    }
}
