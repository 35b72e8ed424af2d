//! Tests that a generated workload has the statistics of the two registry studies that
//! `pierhead_replay::synthetic` cites, and that a seed always gives the same workload.

use std::collections::HashMap;

use pierhead_eviction::Access;
use pierhead_replay::synthetic::{ObjectKind, Workload, WorkloadParameters};

const SEEDS: std::ops::RangeInclusive<u64> = 1..=3;

fn workload(parameters: &WorkloadParameters, seed: u64) -> Workload {
    Workload::new(parameters, seed).expect("the parameters fit")
}

/// The statistics that the registry studies publish, measured on one generated workload.
#[derive(Debug)]
struct Statistics {
    below_1_mb: f64,
    below_10_mb: f64,
    gets_of_1_mb: f64,
    of_the_top: f64,
    smallest: u64,
    largest: u64,
}

fn share<T>(of: &[T], is: impl Fn(&T) -> bool) -> f64 {
    of.iter().filter(|one| is(one)).count() as f64 / of.len() as f64
}

fn statistics(parameters: &WorkloadParameters, seed: u64) -> Statistics {
    let all: Vec<Access<u64>> = workload(parameters, seed).collect();
    let mut layers: HashMap<u64, (u64, usize)> = HashMap::new();
    for access in &all {
        if ObjectKind::of(access.key) == ObjectKind::Layer {
            layers.entry(access.key).or_insert((access.size, 0)).1 += 1;
        }
    }
    let mut layers: Vec<(u64, usize)> = layers.into_values().collect();
    layers.sort_by_key(|(_, gets)| std::cmp::Reverse(*gets));
    let gets: usize = layers.iter().map(|(_, gets)| gets).sum();
    let top: usize = layers[..layers.len() / 100]
        .iter()
        .map(|(_, gets)| gets)
        .sum();
    Statistics {
        below_1_mb: share(&layers, |(size, _)| *size < 1_000_000),
        below_10_mb: share(&layers, |(size, _)| *size < 10_000_000),
        gets_of_1_mb: share(&all, |access| access.size >= 1_000_000),
        of_the_top: top as f64 / gets as f64,
        smallest: layers.iter().map(|(size, _)| *size).min().unwrap_or(0),
        largest: layers.iter().map(|(size, _)| *size).max().unwrap_or(0),
    }
}

/// Checks for each statistic that the mean over all seeds, and the value of each seed, are near the
/// target.
#[test]
fn the_statistics_are_those_of_the_studies() {
    let all: Vec<Statistics> = SEEDS
        .map(|seed| statistics(&WorkloadParameters::default(), seed))
        .collect();
    let check = |name, target: f64, tolerance: f64, value: fn(&Statistics) -> f64| {
        let mean = all.iter().map(value).sum::<f64>() / all.len() as f64;
        assert!(
            (mean - target).abs() <= tolerance,
            "{name}: {mean} in the mean, not {target}"
        );
        for (one, seed) in all.iter().zip(SEEDS) {
            let found = value(one);
            assert!(
                (found - target).abs() <= 2.0 * tolerance,
                "{name}: {found} of seed {seed}, not {target}"
            );
        }
    };
    check("layers below 1 MB", 0.65, 0.02, |of| of.below_1_mb);
    check("layers below 10 MB", 0.80, 0.02, |of| of.below_10_mb);
    check("GETs of 1 MB or more", 0.13, 0.02, |of| of.gets_of_1_mb);
    check("GETs of the top 1 %", 0.42, 0.04, |of| of.of_the_top);
    for one in &all {
        assert_eq!(one.smallest, 32, "the empty layer");
        assert!(
            one.largest >= 1_000_000_000,
            "{} is the largest",
            one.largest
        );
    }
}

#[test]
fn a_seed_is_one_workload_and_another_seed_another() {
    let parameters = WorkloadParameters {
        requests: 5_000,
        ..WorkloadParameters::default()
    };
    let draw = |seed| workload(&parameters, seed).collect::<Vec<_>>();
    assert_eq!(draw(7), draw(7));
    let sizes = |seed| {
        draw(seed)
            .iter()
            .map(|access| access.size)
            .collect::<Vec<_>>()
    };
    assert_ne!(sizes(7), sizes(8), "more than the keys differs");
    assert_eq!(draw(7).len(), 5_000);
}

#[test]
fn ticks_never_fall_and_a_key_keeps_its_size() {
    let parameters = WorkloadParameters {
        requests: 50_000,
        ..WorkloadParameters::default()
    };
    let (mut sizes, mut now) = (HashMap::new(), 0);
    for access in workload(&parameters, 3) {
        assert!(access.tick >= now);
        now = access.tick;
        assert_eq!(*sizes.entry(access.key).or_insert(access.size), access.size);
        assert!(access.shared >= 1);
        assert!((access.cost - Access::<u64>::prior(access.size)).abs() <= f32::EPSILON);
    }
    assert!(now > 3600, "time stands still at {now} seconds");
}

#[test]
fn demand_follows_the_day_and_the_week() {
    let (mut hours, mut days) = ([0_u32; 24], [0_u32; 7]);
    let mut last = 0;
    for access in
        workload(&WorkloadParameters::default(), 4).filter(|access| access.tick >= 7 * 86_400)
    {
        last = access.tick;
        hours[usize::try_from(access.tick / 3600 % 24).unwrap_or(0)] += 1;
        if access.tick < 28 * 86_400 {
            days[usize::try_from(access.tick / 86_400 % 7).unwrap_or(0)] += 1;
        }
    }
    assert!(last > 28 * 86_400, "four weeks, not {last} seconds");
    assert!(hours[15] > 2 * hours[3], "{hours:?}");
    assert!(days[5] + days[6] < days[0] + days[1], "{days:?}");
}

#[test]
fn a_parameter_out_of_range_is_named() {
    let good = WorkloadParameters::default;
    for (name, bad) in [
        (
            "repositories",
            WorkloadParameters {
                repositories: 0,
                ..good()
            },
        ),
        (
            "nodes",
            WorkloadParameters {
                nodes: usize::MAX,
                ..good()
            },
        ),
        (
            "skew",
            WorkloadParameters {
                skew: f64::NAN,
                ..good()
            },
        ),
        (
            "own_layers",
            WorkloadParameters {
                own_layers: (5, 2),
                ..good()
            },
        ),
        (
            "pinned",
            WorkloadParameters {
                pinned: 1.5,
                ..good()
            },
        ),
        (
            "weekend",
            WorkloadParameters {
                weekend: 0.0,
                ..good()
            },
        ),
        (
            "layer_bytes",
            WorkloadParameters {
                layer_bytes: vec![(0.5, 1.0), (0.2, 5.0)],
                ..good()
            },
        ),
        (
            "layer_bytes",
            WorkloadParameters {
                layer_bytes: vec![(0.0, 0.0), (1.0, 5.0)],
                ..good()
            },
        ),
        (
            "release_days",
            WorkloadParameters {
                release_days: (0.0, 1.0),
                ..good()
            },
        ),
        (
            "pulls_a_day",
            WorkloadParameters {
                pulls_a_day: f64::INFINITY,
                ..good()
            },
        ),
    ] {
        let error = Workload::new(&bad, 1).err().map(|error| error.to_string());
        let named = error.as_deref().is_some_and(|text| text.starts_with(name));
        assert!(named, "{name}: {error:?}");
    }
}
