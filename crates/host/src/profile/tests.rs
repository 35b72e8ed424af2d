//! Tests of the memory budget of a profile on machines of different sizes.

use super::*;
use crate::machine::MemoryLimit;

fn machine(memory: u64, limit: Option<u64>, cores: usize) -> Machine {
    let version = Version::Two;
    Machine {
        memory,
        memory_limit: limit.map(|amount| MemoryLimit { amount, version }),
        cores: (0..cores).collect(),
        cpu_limit: None,
    }
}

fn request(name: &str) -> MemoryRequest {
    MemoryRequest {
        profile: Profile::named(name),
        ..MemoryRequest::default()
    }
}

fn budget(name: &str, machine: &Machine) -> (u64, BudgetSource) {
    let budget = memory_budget(request(name), machine).expect("it fits");
    let budget = budget.expect("a budget");
    (budget.bytes, budget.source)
}

#[test]
fn a_budget_is_the_limit_of_the_cgroup_else_a_share() {
    let card = |limit| machine(16 << 30, limit, 8);
    let of_cgroup = BudgetSource::CgroupLimit(Version::Two);
    for (limit, expected) in [
        (Some(700 * MIB), (700 * MIB, of_cgroup)),
        // The budget is the maximum of the profile.
        (Some(3 << 30), (1 << 30, of_cgroup)),
        (None, (1 << 30, BudgetSource::MachineShare(8))),
    ] {
        assert_eq!(budget("bluefield2", &card(limit)), expected);
    }
    // The budget is a percentage of the machine's memory, but at least the minimum of the profile.
    let small = budget("bluefield2", &machine(4 << 30, None, 8));
    assert_eq!(small.0, 512 * MIB);
    // The memory of the machine is unknown (0), so the budget is the minimum.
    assert_eq!(budget("small", &Machine::default()).0, 128 * MIB);
}

#[test]
fn a_profile_is_refused_on_a_machine_that_is_too_small() {
    let refused = |name, machine: &Machine| memory_budget(request(name), machine).unwrap_err();
    let few = refused("bluefield3", &machine(32 << 30, None, 2));
    assert!(matches!(few, Misfit::TooFewCores { allowed, .. } if allowed == [0, 1]));
    let tight = refused("server", &machine(32 << 30, Some(600 * MIB), 8));
    assert!(
        matches!(tight, Misfit::BudgetTooSmall { required, .. } if required == 2 << 30),
        "{tight:?}"
    );
    let small = refused("bluefield2", &machine(1 << 30, None, 2));
    assert!(
        matches!(small, Misfit::MachineTooSmall { required, .. } if required == 2 << 30),
        "{small:?}"
    );
}

#[test]
fn the_largest_smaller_profile_that_fits_is_offered() {
    let offered = |name, machine: &Machine| {
        let profile = Profile::named(name).expect("a profile");
        let smaller = profile.smaller_fitting(request(name), machine);
        smaller.map(|profile| profile.name)
    };
    let two_cores = machine(32 << 30, None, 2);
    assert_eq!(offered("bluefield3", &two_cores), Some("bluefield2"));
    let little = machine(32 << 30, Some(300 * MIB), 8);
    assert_eq!(offered("server", &little), Some("small"));
    assert_eq!(offered("small", &little), None);
}

#[test]
fn the_operators_memory_replaces_the_memory_of_the_profile() {
    let card = machine(16 << 30, Some(1 << 30), 8);
    let by_hand = |name, bytes| {
        let request = MemoryRequest {
            memory: Some(bytes),
            ..request(name)
        };
        memory_budget(request, &card)
    };
    let budget = by_hand("bluefield2", 600 * MIB).expect("it fits");
    assert_eq!(
        budget,
        Some(MemoryBudget {
            bytes: 600 * MIB,
            source: BudgetSource::Operator
        })
    );
    let few = by_hand("bluefield2", 300 * MIB);
    assert!(matches!(few, Err(Misfit::BudgetTooSmall { .. })));
    let many = by_hand("none", 2 << 30);
    assert!(matches!(
        many,
        Err(Misfit::MemoryAboveMachine { available, .. }) if available == 1 << 30
    ));
    assert_eq!(memory_budget(request("none"), &card), Ok(None));
}

#[test]
fn the_fast_tier_is_subtracted_from_the_memory_first() {
    let tiered = |name, tier, limit| {
        let request = MemoryRequest {
            tier,
            ..request(name)
        };
        memory_budget(request, &machine(16 << 30, limit, 8))
    };
    // If the cgroup limit is larger by the size of the fast tier, the profile still has its full
    // budget.
    let beside = tiered("bluefield2", 1 << 30, Some(2 << 30)).expect("it fits");
    assert_eq!(beside.map(|budget| budget.bytes), Some(2 << 30));
    for (name, tier, limit) in [
        ("bluefield2", 1 << 30, Some(1 << 30)),
        ("none", 1 << 30, Some(1 << 30)),
        ("bluefield2", 15 << 30, None),
    ] {
        let refused = tiered(name, tier, limit);
        assert!(
            matches!(refused, Err(Misfit::TierTooLarge { .. })),
            "{name}: {refused:?}"
        );
    }
    let unknown = MemoryRequest {
        tier: 1 << 40,
        ..request("none")
    };
    assert_eq!(memory_budget(unknown, &Machine::default()), Ok(None));
}
