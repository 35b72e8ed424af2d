//! Tests of the placement rules of the fast tier: the last layer, speeds of link and disk, small
//! layers, and ranks.

use proptest::prelude::*;

use super::*;

fn waiting(size: u64) -> LayerProgress {
    LayerProgress {
        size,
        ..LayerProgress::default()
    }
}

fn running(size: u64, landed: u64, rate: Option<f64>) -> LayerProgress {
    LayerProgress {
        size,
        landed,
        rate,
        running: true,
    }
}

#[test]
fn at_equal_speed_the_largest_layer_and_those_above_go_to_the_fast_tier() {
    let rule = LayerAware::default();
    let layers = [waiting(10), waiting(90), waiting(20)];
    assert_eq!(rule.last_downloading(&layers), Some(1));
    let places: Vec<_> = (0..3).map(|index| rule.place(&layers, index)).collect();
    assert_eq!(
        places,
        [Destination::Disk, Destination::Fast, Destination::Fast]
    );
}

#[test]
fn progress_rate_and_parallel_fetches_determine_the_last_layer() {
    let rule = LayerAware::default();
    // The large layer has nearly arrived, so the other layer arrives last.
    assert_eq!(
        rule.last_downloading(&[running(20, 0, None), running(90, 85, None), waiting(1)]),
        Some(0)
    );
    // The small layer arrives last, because its download is slow.
    assert_eq!(
        rule.last_downloading(&[running(20, 0, Some(1.0)), running(90, 0, Some(10.0))]),
        Some(0)
    );
    // The fourth layer waits until one of the client's three downloads ends.
    let four = [waiting(50), waiting(50), waiting(50), waiting(10)];
    assert_eq!(rule.last_downloading(&four), Some(3));
    assert_eq!(
        LayerAware {
            parallel: 4,
            ..rule
        }
        .last_downloading(&four),
        Some(0)
    );
    assert_eq!(rule.last_downloading(&[running(5, 5, None)]), None);
    assert_eq!(rule.place(&[running(5, 5, None)], 0), Destination::Disk);
}

#[test]
fn layers_that_the_disk_stores_before_the_last_one_arrives_go_to_the_disk() {
    const MB: u64 = 1_000_000;
    let rule = LayerAware {
        pace: Some(FetchRate {
            link: 100e6,
            disk: Speed {
                latency: 0.1,
                per_byte: 1.0 / 110e6,
            },
        }),
        ..LayerAware::default()
    };
    let places = |sizes: &[u64]| {
        let layers: Vec<_> = sizes.iter().map(|size| waiting(size * MB)).collect();
        let all = (0..layers.len()).map(|index| rule.place(&layers, index));
        all.map(|place| place == Destination::Fast)
            .collect::<Vec<_>>()
    };
    // All three layers share the link: the second layer arrives after 9 s, the first layer after 3
    // s, and the third layer after 5 s.
    assert_eq!(places(&[100, 600, 200]), [false, true, false]);
    // The first layer is below the layer that arrives last, and arrives just before it.
    assert_eq!(places(&[400, 402, 80]), [true, true, false]);
    // The base layer arrives last, and the disk has stored the layers above the base layer before
    // that.
    assert_eq!(places(&[700, 100, 100]), [true, false, false]);
    // All three layers arrive at the same time.
    assert_eq!(places(&[9, 9, 9]), [true; 3]);
    // Layers that are already stored do not count.
    let layers = [running(90 * MB, 90 * MB, None), waiting(500 * MB)];
    assert_eq!(rule.place(&layers, 1), Destination::Fast);
    // A slow disk has time for only one layer: the disk gets the larger candidate.
    let slow = LayerAware {
        pace: rule.pace.map(|pace| FetchRate {
            disk: Speed {
                per_byte: 1.0 / 27e6,
                ..pace.disk
            },
            ..pace
        }),
        ..rule
    };
    let layers = [100, 600, 200].map(|size| waiting(size * MB));
    let all = (0..3).map(|index| slow.place(&layers, index) == Destination::Fast);
    assert_eq!(all.collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn the_disk_gets_as_many_bytes_as_it_can_store_in_time() {
    let rule = LayerAware {
        pace: Some(FetchRate {
            link: 250e6,
            disk: Speed::HARD_DISK,
        }),
        ..LayerAware::default()
    };
    // The layer sizes are in units of 100 kB. The sizes are typical for public images: base layer,
    // packages, application.
    let on_disk = |sizes: &[u64]| {
        let layers: Vec<_> = sizes.iter().map(|size| waiting(size * 100_000)).collect();
        let places = (0..layers.len()).filter(|index| {
            let place = rule.place(&layers, *index);
            place == Destination::Disk
        });
        places.collect::<Vec<_>>()
    };
    // The base layer would be stored 1 % too late, which is within the tolerance: one of two layers
    // can go to the disk.
    assert_eq!(on_disk(&[279, 408]), [0]);
    assert!(on_disk(&[279, 343]).is_empty());
    // The disk has time for one of two layers, and gets the larger layer.
    assert_eq!(on_disk(&[279, 113, 111]), [1]);
    assert_eq!(on_disk(&[279, 336, 448]), [1]);
    assert_eq!(on_disk(&[279, 791, 393]), [0, 2]);
    // For small layers the disk would have to seek, and it has no time for seeks.
    assert_eq!(on_disk(&[279, 142, 1, 1, 1]), [1]);
    assert!(on_disk(&[30, 30, 3000]).is_empty());
}

#[test]
fn the_saving_per_byte_follows_the_measured_speeds() {
    let mut value = TierSpeeds::default();
    let small = value.saved_per_byte(64 << 10, 1.0);
    let large = value.saved_per_byte(64 << 20, 1.0);
    assert!(
        small > large,
        "seeking costs the small one more for each byte"
    );
    assert!(
        (value.saved_per_byte(1 << 20, 3.0) / value.saved_per_byte(1 << 20, 1.0) - 3.0).abs()
            < 1e-9
    );
    value.disk = value.fast;
    assert_eq!(
        value.saved_per_byte(1 << 20, 5.0),
        0.0,
        "a disk as fast saves nothing"
    );
    let mut speed = Speed::HARD_DISK;
    for _ in 0..500 {
        speed.observe_run(1 << 20, Speed::NVDIMM.seconds(1 << 20));
        speed.observe_first(1 << 20, Speed::NVDIMM.seconds(1 << 20));
    }
    assert!(speed.seconds(1 << 20) < 2.0 * Speed::NVDIMM.seconds(1 << 20));
}

#[test]
fn the_rank_of_sharing_runs_ignores_sizes() {
    assert_eq!(SharingRuns.rank(3, 4.0), 12.0);
    assert_eq!(SharingRuns.rank(0, 4.0), 4.0);
    assert_eq!(SharingRuns.rank(9, f64::NAN), 0.0);
}

#[test]
fn each_placement_rule_uses_its_own_facts() {
    let facts = BlobFacts {
        bytes: 1 << 20,
        demand: 1.0,
        sharing: 1,
        arriving: Some(Destination::Fast),
        floor: 0.0,
    };
    let speeds = TierSpeeds::default();
    let decide = |facts| Placement::ALL.map(|rule| rule.decide(&speeds, &facts).destination);
    assert_eq!(decide(facts), [Destination::Fast; 3]);
    // Only the layer-aware rule uses `arriving`, and only this rule ignores `floor`.
    let (fast, disk) = (Destination::Fast, Destination::Disk);
    let early = BlobFacts {
        arriving: Some(Destination::Disk),
        ..facts
    };
    assert_eq!(decide(early), [fast, disk, fast]);
    let unnamed = BlobFacts {
        arriving: None,
        ..facts
    };
    assert_eq!(decide(unnamed), [fast, disk, fast]);
    let crowded = BlobFacts {
        floor: 100.0,
        ..facts
    };
    assert_eq!(decide(crowded), [disk, fast, disk]);
    let unwanted = BlobFacts {
        demand: 0.0,
        ..facts
    };
    assert_eq!(decide(unwanted), [disk, fast, disk]);
}

#[test]
fn names_of_placements_survive_a_round_trip() {
    for placement in Placement::ALL {
        assert_eq!(placement.to_string().parse(), Ok(placement));
    }
    let error = "value=1".parse::<Placement>().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"value=1\" is no tier placement")
    );
    assert_eq!(Placement::default(), Placement::SharingRuns);
}

#[test]
fn for_value_an_image_counts_as_an_expected_request() {
    let of = |placement: Placement, demand, sharing| {
        let facts = BlobFacts {
            bytes: 10 << 20,
            demand,
            sharing,
            arriving: None,
            floor: 0.0,
        };
        placement.priority(&TierSpeeds::default(), &facts)
    };
    let value = |demand, sharing| of(Placement::Value, demand, sharing);
    assert_eq!(value(1.0, 5), value(5.0, 1), "no request came yet");
    assert!(value(1.0, 5) > value(1.0, 4) && value(1.0, 5) < value(2.0, 5));
    assert_eq!(value(3.0, 0), value(3.0, 1), "its own image is not to come");
    let shared = |demand, sharing| of(Placement::SharingRuns, demand, sharing);
    assert_eq!(shared(2.0, 6), shared(3.0, 4), "a product");
    assert!(shared(2.0, 6) > shared(2.0, 5));
    assert_eq!(of(Placement::LayerAware, 9.0, 9), 0.0);
}

#[test]
fn the_margin_is_a_quarter_of_the_saving() {
    let rule = Placement::Value;
    let of = |demand| {
        let facts = BlobFacts {
            bytes: 1 << 20,
            demand,
            sharing: 1,
            arriving: None,
            floor: 0.0,
        };
        rule.priority(&TierSpeeds::default(), &facts)
    };
    let above = |demand| of(demand) > of(100.0) + rule.margin();
    assert!(above(126.0) && !above(124.0));
    assert_eq!(Placement::LayerAware.margin(), 0.0);
}

proptest! {
    #[test]
    fn lass_puts_the_upper_layers_on_the_fast_tier(
        layers in proptest::collection::vec((0_u64..1000, 0_u64..1000, any::<bool>()), 0..40),
        parallel in 0_usize..6,
    ) {
        let layers: Vec<_> = layers
            .into_iter()
            .map(|(size, landed, running)| LayerProgress {
                size,
                landed,
                rate: None,
                running,
            })
            .collect();
        let rule = LayerAware { parallel, pace: None };
        let staged: Vec<_> = (0..layers.len())
            .map(|index| rule.place(&layers, index) == Destination::Fast)
            .collect();
        prop_assert!(staged.is_sorted());
        let is_missing = |layer: &LayerProgress| layer.landed < layer.size;
        let last = rule.last_downloading(&layers);
        prop_assert_eq!(last.is_some(), layers.iter().any(is_missing));
        prop_assert!(last.is_none_or(|last| is_missing(&layers[last]) && staged[last]));
    }

    #[test]
    fn priorities_are_finite_and_grow_with_demand(
        bytes in any::<u64>(),
        (less, more) in (any::<f64>(), any::<f64>()),
        sharing in any::<u32>(),
        rule in 0_usize..3,
    ) {
        let rule = Placement::ALL[rule];
        let of = |demand| rule.decide(&TierSpeeds::default(), &BlobFacts {
            bytes, demand, sharing, arriving: None, floor: 0.0,
        }).priority;
        prop_assert!(of(less).is_finite() && of(less) >= 0.0);
        if less <= more {
            prop_assert!(of(less) <= of(more) * (1.0 + 1e-9));
        }
    }

    #[test]
    fn measured_speeds_stay_finite(runs in proptest::collection::vec((any::<u64>(), any::<f64>()), 0..100)) {
        let mut speed = Speed::HARD_DISK;
        for (bytes, seconds) in runs {
            speed.observe_run(bytes, seconds);
            speed.observe_first(bytes, seconds);
        }
        prop_assert!(speed.latency.is_finite() && speed.per_byte.is_finite());
        prop_assert!(speed.latency >= 0.0 && speed.per_byte >= 0.0);
    }
}
