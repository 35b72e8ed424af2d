//! Unit tests of profiles: the defaults on a given host, and errors of a profile that does not fit.

use std::time::Duration;

use super::*;
use pierhead_host::machine::{CpuLimit, MemoryLimit};

use crate::config::crate_configs::{self, worker_threads};

fn machine(memory: u64, limit: Option<u64>, cores: usize) -> Machine {
    let version = Version::Two;
    Machine {
        memory,
        memory_limit: limit.map(|amount| MemoryLimit { amount, version }),
        cores: (0..cores).collect(),
        cpu_limit: None,
    }
}

fn config_with_profile(name: &str, machine: &Machine) -> Result<Config, UnfitKey> {
    let mut config = Config::with_data("/data".into());
    let profile = profile_named(name).unwrap();
    apply_profile(&mut config, request(Some(profile), None), machine).map(|_| config)
}

fn request(profile: Option<&'static Profile>, memory: Option<u64>) -> MemoryRequest {
    MemoryRequest {
        profile,
        memory,
        tier: 0,
    }
}

fn error_message(name: &str, machine: &Machine) -> String {
    config_with_profile(name, machine).err().unwrap().message
}

#[test]
fn the_memory_is_the_cgroup_limit_or_a_share_of_the_host() {
    let budget =
        |name, machine: &Machine| config_with_profile(name, machine).unwrap().limits.memory;
    let dpu = |limit| machine(16 << 30, limit, 8);
    assert_eq!(
        budget("bluefield2", &dpu(None)),
        Some(1 << 30),
        "the maximum of the profile"
    );
    assert_eq!(budget("bluefield2", &dpu(Some(700 * MIB))), Some(700 * MIB));
    assert_eq!(budget("bluefield2", &dpu(Some(3 << 30))), Some(1 << 30));
    // On a small DPU, the budget is a share of the DPU's memory, but at least the minimum of the
    // profile.
    assert_eq!(
        budget("bluefield2", &machine(4 << 30, None, 8)),
        Some(512 * MIB)
    );
    assert_eq!(
        budget("server", &machine(10_000 * MIB, None, 8)),
        Some(2500 * MIB)
    );
    // If the kernel reports no memory size, the budget is the minimum of the profile.
    assert_eq!(budget("small", &Machine::default()), Some(128 * MIB));
}

#[test]
fn a_profile_that_does_not_fit_is_an_error_with_one_that_does() {
    let output = |name, machine: &Machine| error_message(name, machine);
    let few = output("bluefield3", &machine(32 << 30, None, 2));
    assert!(
        few.contains("needs 4 cores") && few.contains("use 2 (0-1)"),
        "{few}"
    );
    assert!(few.ends_with("--profile bluefield2 fits"), "{few}");
    let tight = output("server", &machine(32 << 30, Some(600 * MIB), 8));
    assert!(
        tight.contains("needs 2.0 GiB") && tight.contains("is 600.0 MiB"),
        "{tight}"
    );
    assert!(tight.ends_with("--profile bluefield2 fits"), "{tight}");
    let little = output("bluefield2", &machine(1 << 30, None, 2));
    assert!(
        little.contains("a host with 2.0 GiB") && little.contains("has 1.0 GiB"),
        "{little}"
    );
    let none = output("small", &machine(1 << 30, Some(100 * MIB), 1));
    assert!(none.contains("no profile fits"), "{none}");
    assert!(
        profile_named("bluefield9")
            .unwrap_err()
            .contains("\"bluefield2\"")
    );
}

#[test]
fn the_defaults_of_a_profile_have_their_source() {
    let mut dpu = machine(16 << 30, Some(1 << 30), 8);
    let mut config = Config::with_data("/data".into());
    let profile = profile_named("bluefield2").unwrap();
    let sources = apply_profile(&mut config, request(Some(profile), None), &dpu).unwrap();
    assert_eq!(config.bundle.workers, 1);
    assert_eq!(worker_threads(&config, &dpu), 2, "one for each core");
    assert_eq!(
        config.limits.cores,
        pierhead_host::machine::CpuSelection::Last(2)
    );
    assert_eq!(config.cache.size, Size::Percent(25));
    assert_eq!(config.limits.upstream_bandwidth, Some(312_000_000));
    assert_eq!(config.cache.daily_write_budget, 16 << 30);
    assert!(config.bundle.size.is_some());
    let limits = crate_configs::proxy(&config).limits;
    assert_eq!(limits.downloads_per_registry, 24, "three quarters");
    assert_eq!(
        limits.response_memory_per_client,
        config.limits.response_memory / 2
    );
    let of = |key| sources.iter().find(|(it, _)| *it == key).unwrap().1.clone();
    assert_eq!(
        of("limits.memory"),
        "profile bluefield2: the memory limit of the cgroup (version 2)"
    );
    let known: Vec<_> = crate::config::paths().collect();
    for (key, _) in &sources {
        assert!(known.iter().any(|it| it == key), "{key} is not a key");
    }
    // With a CPU quota of half a core, one thread is enough.
    dpu.cpu_limit = Some(CpuLimit {
        amount: 500,
        period: Duration::from_millis(100),
        stat: "cpu.stat".into(),
    });
    assert_eq!(worker_threads(&config, &dpu), 1);
}

#[test]
fn limits_memory_works_without_a_profile_and_overrides_that_of_a_profile() {
    let dpu = machine(16 << 30, Some(1 << 30), 8);
    let profile = Profile::named("small");
    let mut config = Config::with_data("/data".into());
    // The parser sets the key, before it applies the profile.
    config.limits.memory = Some(200 * MIB);
    apply_profile(&mut config, request(profile, Some(200 * MIB)), &dpu).unwrap();
    assert!(config.bundle.size.is_none(), "no room for a worker");
    let toc_memory = |config: &Config| {
        let space = crate_configs::FileSystemSpace { total: 0, free: 0 };
        crate_configs::bundle_server(config, space).toc_memory
    };
    assert_eq!(toc_memory(&config), 25 * MIB, "an eighth");
    let mut config = Config::with_data("/data".into());
    assert_eq!(toc_memory(&config), 64 * MIB, "without a limit");
    let sources = apply_profile(&mut config, request(None, Some(512 * MIB)), &dpu).unwrap();
    assert_eq!(toc_memory(&config), 64 * MIB);
    assert!(config.limits.connections < 4096);
    assert!(sources.iter().all(|(_, of)| !of.contains("profile")));
    let more = apply_profile(&mut config, request(None, Some(2 << 30)), &dpu).unwrap_err();
    assert!(more.message.contains("the host has 1.0 GiB"), "{more:?}");
    let mut plain = Config::with_data("/data".into());
    assert_eq!(
        apply_profile(&mut plain, MemoryRequest::default(), &dpu),
        Ok(Vec::new())
    );
    assert_eq!(plain.limits.connections, 4096);
}

/// The minimum of a profile applies to `limits.memory` and to the cgroup limit.
#[test]
fn memory_below_the_minimum_of_a_profile_is_an_error() {
    let profile = Profile::named("bluefield2");
    let apply = |request, limit| {
        let mut config = Config::with_data("/data".into());
        apply_profile(&mut config, request, &machine(16 << 30, Some(limit), 8))
    };
    let by_hand = apply(request(profile, Some(300 * MIB)), 1 << 30).unwrap_err();
    assert_eq!(by_hand.key, "limits.memory");
    let output = &by_hand.message;
    assert!(
        output.contains("needs 512.0 MiB") && output.contains("limits.memory is 300.0 MiB"),
        "{output}"
    );
    assert!(output.ends_with("--profile small fits"), "{output}");
    let by_group = apply(request(profile, None), 400 * MIB).unwrap_err();
    assert_eq!(by_group.key, "profile");
    assert!(apply(request(profile, Some(600 * MIB)), 1 << 30).is_ok());
}

#[test]
fn the_size_of_a_tier_in_memory_is_subtracted_from_the_budget() {
    let dpu = |limit| machine(16 << 30, limit, 8);
    let apply = |request: MemoryRequest, machine: &Machine| {
        let mut config = Config::with_data("/data".into());
        apply_profile(&mut config, request, machine).map(|_| config)
    };
    let tiered = |name: &str, tier| MemoryRequest {
        profile: Profile::named(name),
        memory: None,
        tier,
    };
    let without = apply(tiered("bluefield2", 0), &dpu(Some(1 << 30))).unwrap();
    // Asserts that a pod whose memory limit includes the tier has the same defaults as a pod
    // without a tier.
    let beside = apply(tiered("bluefield2", 1 << 30), &dpu(Some(2 << 30))).unwrap();
    assert_eq!(beside.limits.memory, Some(2 << 30));
    assert_eq!(
        beside.limits.response_memory,
        without.limits.response_memory
    );
    let tight = apply(tiered("bluefield2", 512 * MIB), &dpu(Some(1 << 30))).unwrap();
    assert!(tight.limits.response_memory < without.limits.response_memory);
    // With `limits.memory`, the result is the same, with and without a profile.
    for profile in [None, Some("bluefield2")] {
        let request = |tier| MemoryRequest {
            memory: Some(1 << 30),
            ..tiered(profile.unwrap_or("none"), tier)
        };
        let (all, less) = (request(0), request(400 * MIB));
        let of = |request| apply(request, &dpu(None)).unwrap().limits.connections;
        assert!(of(less) <= of(all), "{profile:?}");
        assert_eq!(apply(less, &dpu(None)).unwrap().limits.memory, None);
    }
    // The error names the tier, whether a request or a limit restricts the memory.
    for (request, limit) in [
        (tiered("bluefield2", 1 << 30), Some(1 << 30)),
        (tiered("none", 1 << 30), Some(1 << 30)),
        (tiered("bluefield2", 15 << 30), None),
        (
            MemoryRequest {
                memory: Some(512 * MIB),
                ..tiered("none", 400 * MIB)
            },
            None,
        ),
    ] {
        let UnfitKey { key, message } = apply(request, &dpu(limit)).err().unwrap();
        assert_eq!(key, "tier.size", "{message}");
        assert!(message.contains("tier.size = "), "{message}");
    }
    let output = apply(tiered("bluefield2", 1 << 30), &dpu(Some(1 << 30)));
    let output = output.err().unwrap().message;
    assert!(output.contains("write 512.0 MiB or less"), "{output}");
    // If the kernel reports no data of the host, an oversized tier is no error.
    assert!(apply(tiered("none", 1 << 40), &Machine::default()).is_ok());
}

#[test]
fn each_profile_fits_the_memory_limit_of_its_pod_in_the_chart() {
    for profile in &PROFILES {
        let cores = profile.min_cores;
        let pod = machine(64 << 30, Some(profile.memory * MIB), cores);
        assert!(
            config_with_profile(profile.name, &pod).is_ok(),
            "{}",
            profile.name
        );
        let config = config_with_profile(profile.name, &pod).unwrap();
        assert_eq!(
            default_shares(&config).responses,
            profile.response_memory * MIB
        );
        let workers = u64::try_from(config.bundle.workers).unwrap();
        assert_eq!(workers, profile.bundle_workers.max(1), "{}", profile.name);
        assert_eq!(config.bundle.size.is_some(), profile.bundle_workers > 0);
        assert!(profile.min_memory <= profile.memory);
    }
}
