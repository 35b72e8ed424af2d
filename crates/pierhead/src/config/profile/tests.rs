//! What a machine gets of a profile, and when it gets none.

use std::time::Duration;

use super::*;
use pierhead_host::machine::{CpuLimit, MemoryLimit};

use crate::crate_configs::{self, worker_threads};

fn machine(memory: u64, limit: Option<u64>, cores: usize) -> Machine {
    let version = Version::Two;
    Machine {
        memory,
        memory_limit: limit.map(|amount| MemoryLimit { amount, version }),
        cores: (0..cores).collect(),
        cpu_limit: None,
    }
}

fn settled(name: &str, machine: &Machine) -> Result<Config, UnfitKey> {
    let mut config = Config::with_data("/data".into());
    let profile = profile_named(name).unwrap();
    apply_profile(&mut config, of(Some(profile), None), machine).map(|_| config)
}

fn of(profile: Option<&'static Profile>, memory: Option<u64>) -> MemoryRequest {
    MemoryRequest {
        profile,
        memory,
        tier: 0,
    }
}

fn output(name: &str, machine: &Machine) -> String {
    settled(name, machine).err().unwrap().message
}

#[test]
fn a_budget_is_the_groups_limit_else_a_share() {
    let budget = |name, machine: &Machine| settled(name, machine).unwrap().limits.memory;
    let card = |limit| machine(16 << 30, limit, 8);
    assert_eq!(
        budget("bluefield2", &card(None)),
        Some(1 << 30),
        "the profile's own bound"
    );
    assert_eq!(
        budget("bluefield2", &card(Some(700 * MIB))),
        Some(700 * MIB)
    );
    assert_eq!(budget("bluefield2", &card(Some(3 << 30))), Some(1 << 30));
    // A small simulated card: a share, but no less than it needs.
    assert_eq!(
        budget("bluefield2", &machine(4 << 30, None, 8)),
        Some(512 * MIB)
    );
    assert_eq!(
        budget("server", &machine(10_000 * MIB, None, 8)),
        Some(2500 * MIB)
    );
    // Where the kernel says nothing nothing is held against it.
    assert_eq!(budget("small", &Machine::default()), Some(128 * MIB));
}

#[test]
fn what_does_not_fit_is_told_with_what_does() {
    let output = |name, machine: &Machine| output(name, machine);
    let few = output("bluefield3", &machine(32 << 30, None, 2));
    assert!(
        few.contains("wants 4 cores") && few.contains("on 2 (0-1)"),
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
        little.contains("machines of 2.0 GiB") && little.contains("has 1.0 GiB"),
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
fn a_profile_gives_defaults_that_say_where_they_are_from() {
    let mut card = machine(16 << 30, Some(1 << 30), 8);
    let mut config = Config::with_data("/data".into());
    let profile = profile_named("bluefield2").unwrap();
    let origins = apply_profile(&mut config, of(Some(profile), None), &card).unwrap();
    assert_eq!(config.bundle.workers, 1);
    assert_eq!(worker_threads(&config, &card), 2, "one for each core");
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
    let of = |key| origins.iter().find(|(it, _)| *it == key).unwrap().1.clone();
    assert!(
        of("limits.memory").starts_with("profile bluefield2: the limit of the cgroup (version 2)")
    );
    let known: Vec<_> = crate::config::paths().collect();
    for (key, _) in &origins {
        assert!(known.iter().any(|it| it == key), "{key} is no key");
    }
    // A quota of half a core keeps no more than one thread busy.
    card.cpu_limit = Some(CpuLimit {
        amount: 500,
        period: Duration::from_millis(100),
        stat: "cpu.stat".into(),
    });
    assert_eq!(worker_threads(&config, &card), 1);
}

#[test]
fn an_operators_budget_counts_alone_and_over_a_profiles() {
    let card = machine(16 << 30, Some(1 << 30), 8);
    let profile = Profile::named("small");
    let mut config = Config::with_data("/data".into());
    apply_profile(&mut config, of(profile, Some(200 * MIB)), &card).unwrap();
    assert!(config.bundle.size.is_none(), "no room for a worker");
    let mut config = Config::with_data("/data".into());
    let origins = apply_profile(&mut config, of(None, Some(512 * MIB)), &card).unwrap();
    assert!(config.limits.connections < 4096);
    assert!(origins.iter().all(|(_, of)| !of.contains("profile")));
    let more = apply_profile(&mut config, of(None, Some(2 << 30)), &card).unwrap_err();
    assert!(more.message.contains("there are 1.0 GiB"), "{more:?}");
    let mut plain = Config::with_data("/data".into());
    assert_eq!(
        apply_profile(&mut plain, MemoryRequest::default(), &card),
        Ok(Vec::new())
    );
    assert_eq!(plain.limits.connections, 4096);
}

/// Whoever sets it, a profile needs what its table says, of whatever limit.
#[test]
fn a_budget_is_enough_for_its_profile_whoever_sets_it() {
    let profile = Profile::named("bluefield2");
    let settle = |asked, limit| {
        let mut config = Config::with_data("/data".into());
        apply_profile(&mut config, asked, &machine(16 << 30, Some(limit), 8))
    };
    let by_hand = settle(of(profile, Some(300 * MIB)), 1 << 30).unwrap_err();
    assert_eq!(by_hand.key, "limits.memory");
    let output = &by_hand.message;
    assert!(
        output.contains("needs 512.0 MiB") && output.contains("limits.memory is 300.0 MiB"),
        "{output}"
    );
    assert!(output.ends_with("--profile small fits"), "{output}");
    let by_group = settle(of(profile, None), 400 * MIB).unwrap_err();
    assert_eq!(by_group.key, "profile");
    assert!(settle(of(profile, Some(600 * MIB)), 1 << 30).is_ok());
}

#[test]
fn a_tier_in_memory_comes_off_the_budget_first() {
    let card = |limit| machine(16 << 30, limit, 8);
    let settle = |asked: MemoryRequest, machine: &Machine| {
        let mut config = Config::with_data("/data".into());
        apply_profile(&mut config, asked, machine).map(|_| config)
    };
    let tiered = |name: &str, tier| MemoryRequest {
        profile: Profile::named(name),
        memory: None,
        tier,
    };
    let without = settle(tiered("bluefield2", 0), &card(Some(1 << 30))).unwrap();
    // A pod that is bound to the tier's bytes more plans as one without a tier.
    let beside = settle(tiered("bluefield2", 1 << 30), &card(Some(2 << 30))).unwrap();
    assert_eq!(beside.limits.memory, Some(2 << 30));
    assert_eq!(
        beside.limits.response_memory,
        without.limits.response_memory
    );
    let tight = settle(tiered("bluefield2", 512 * MIB), &card(Some(1 << 30))).unwrap();
    assert!(tight.limits.response_memory < without.limits.response_memory);
    // By hand as well, with a profile and without.
    for profile in [None, Some("bluefield2")] {
        let asked = |tier| MemoryRequest {
            memory: Some(1 << 30),
            ..tiered(profile.unwrap_or("none"), tier)
        };
        let (all, less) = (asked(0), asked(400 * MIB));
        let of = |asked| settle(asked, &card(None)).unwrap().limits.connections;
        assert!(of(less) <= of(all), "{profile:?}");
        assert_eq!(settle(less, &card(None)).unwrap().limits.memory, None);
    }
    // What does not fit is the tier, whatever bounds it.
    for (asked, limit) in [
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
        let UnfitKey { key, message } = settle(asked, &card(limit)).err().unwrap();
        assert_eq!(key, "tier.size", "{message}");
        assert!(message.contains("tier.size = "), "{message}");
    }
    let output = settle(tiered("bluefield2", 1 << 30), &card(Some(1 << 30)));
    let output = output.err().unwrap().message;
    assert!(output.contains("write 512.0 MiB or less"), "{output}");
    // A machine of another, where nothing is known, is not judged.
    assert!(settle(tiered("none", 1 << 40), &Machine::default()).is_ok());
}

#[test]
fn each_profile_fits_the_pod_that_the_chart_makes_for_it() {
    for profile in &PROFILES {
        let cores = profile.min_cores;
        let pod = machine(64 << 30, Some(profile.memory * MIB), cores);
        assert!(settled(profile.name, &pod).is_ok(), "{}", profile.name);
        let config = settled(profile.name, &pod).unwrap();
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
