use proptest::prelude::*;

use super::*;

fn waiting(size: u64) -> Progress {
    Progress {
        size,
        ..Progress::default()
    }
}

fn running(size: u64, landed: u64, rate: Option<f64>) -> Progress {
    Progress {
        size,
        landed,
        rate,
        running: true,
    }
}

#[test]
fn the_largest_of_equals_in_speed_arrives_last_and_what_is_above_follows_it() {
    let rule = LayerAware::default();
    let layers = [waiting(10), waiting(90), waiting(20)];
    assert_eq!(rule.last_downloading(&layers), Some(1));
    let places: Vec<_> = (0..3).map(|index| rule.place(&layers, index)).collect();
    assert_eq!(places, [Placement::Disk, Placement::Fast, Placement::Fast]);
}

#[test]
fn progress_rate_and_the_clients_hands_decide_who_is_last() {
    let rule = LayerAware::default();
    // The large one is nearly here.
    assert_eq!(
        rule.last_downloading(&[running(20, 0, None), running(90, 85, None), waiting(1)]),
        Some(0)
    );
    // The small one comes slowly.
    assert_eq!(
        rule.last_downloading(&[running(20, 0, Some(1.0)), running(90, 0, Some(10.0))]),
        Some(0)
    );
    // The fourth waits for a hand.
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
    assert_eq!(rule.place(&[running(5, 5, None)], 0), Placement::Disk);
}

#[test]
fn what_the_disk_has_stored_before_the_last_is_here_goes_there() {
    const MB: u64 = 1_000_000;
    let rule = LayerAware {
        pace: Some(Pace {
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
        all.map(|place| place == Placement::Fast)
            .collect::<Vec<_>>()
    };
    // All three share the link: the last is here after 9 s, the others after 3 and 5.
    assert_eq!(places(&[100, 600, 200]), [false, true, false]);
    // Below the last, but here only just before it.
    assert_eq!(places(&[400, 402, 80]), [true, true, false]);
    // The base is the last one: what is above it is stored by then.
    assert_eq!(places(&[700, 100, 100]), [true, false, false]);
    // Three that come at the same time.
    assert_eq!(places(&[9, 9, 9]), [true; 3]);
    // What is stored already is not in the way.
    let layers = [running(90 * MB, 90 * MB, None), waiting(500 * MB)];
    assert_eq!(rule.place(&layers, 1), Placement::Fast);
    // A disk that is as slow as this has time for one of them: the larger of those that it can have.
    let slow = LayerAware {
        pace: rule.pace.map(|pace| Pace {
            disk: Speed {
                per_byte: 1.0 / 27e6,
                ..pace.disk
            },
            ..pace
        }),
        ..rule
    };
    let layers = [100, 600, 200].map(|size| waiting(size * MB));
    let all = (0..3).map(|index| slow.place(&layers, index) == Placement::Fast);
    assert_eq!(all.collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn by_time_the_disk_has_as_many_bytes_as_it_can_have_stored() {
    let rule = LayerAware {
        pace: Some(Pace {
            link: 250e6,
            disk: Speed::HARD_DISK,
        }),
        ..LayerAware::default()
    };
    // In units of 100 kB, as images of public registries are: a base, what was installed, the application.
    let on_disk = |sizes: &[u64]| {
        let layers: Vec<_> = sizes.iter().map(|size| waiting(size * 100_000)).collect();
        let places = (0..layers.len()).filter(|index| {
            let place = rule.place(&layers, *index);
            place == Placement::Disk
        });
        places.collect::<Vec<_>>()
    };
    // The base is stored a hundredth of the time after the last is here: two layers of one size need not both be staged.
    assert_eq!(on_disk(&[279, 408]), [0]);
    assert!(on_disk(&[279, 343]).is_empty());
    // The larger of two that the disk has time for.
    assert_eq!(on_disk(&[279, 113, 111]), [1]);
    assert_eq!(on_disk(&[279, 336, 448]), [1]);
    assert_eq!(on_disk(&[279, 791, 393]), [0, 2]);
    // Places are to be found for small ones, too: the disk has no time for that.
    assert_eq!(on_disk(&[279, 142, 1, 1, 1]), [1]);
    assert!(on_disk(&[30, 30, 3000]).is_empty());
}

fn steps(texts: &[&str]) -> Vec<Step> {
    let step = |text: &&str| Step {
        created_by: (*text).to_owned(),
    };
    texts.iter().map(step).collect()
}

#[test]
fn history_tells_engine_and_application() {
    use Temperature::{Application, Cold, Engine};
    let start = Start {
        arguments: vec!["python3".into(), "-m".into(), "flask".into(), "run".into()],
        environment: vec!["PATH=/usr/bin".into(), "PYTHON_VERSION=3.11.4".into()],
    };
    let history = steps(&[
        "/bin/sh -c #(nop) ADD file:abc in / ",
        "RUN /bin/sh -c apt-get install -y ca-certificates netbase tzdata",
        "RUN /bin/sh -c wget -O p.tar.xz \"https://host/$PYTHON_VERSION/x\" && make",
        "RUN /bin/sh -c pip install flask",
        "COPY . /app # buildkit",
    ]);
    assert_eq!(
        HotImageFiles.judge(5, &history, &start),
        Some(vec![Cold, Cold, Engine, Engine, Application])
    );
    assert_eq!(HotImageFiles.judge(4, &history, &start), None);
    let server = Start {
        arguments: vec![
            "docker-entrypoint.sh".into(),
            "/usr/bin/redis-server".into(),
        ],
        ..Start::default()
    };
    let history = steps(&[
        "RUN groupadd redisson",
        "RUN make -C /usr/src/redis",
        "/bin/sh -c #(nop) COPY file:1 in /",
    ]);
    assert_eq!(
        HotImageFiles.judge(3, &history, &server),
        Some(vec![Cold, Engine, Application])
    );
}

#[test]
fn value_is_what_is_measured() {
    let mut value = Value::default();
    let small = value.per_byte(64 << 10, 1.0);
    let large = value.per_byte(64 << 20, 1.0);
    assert!(
        small > large,
        "seeking costs the small one more for each byte"
    );
    assert!((value.per_byte(1 << 20, 3.0) / value.per_byte(1 << 20, 1.0) - 3.0).abs() < 1e-9);
    value.disk = value.fast;
    assert_eq!(
        value.per_byte(1 << 20, 5.0),
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
fn sharing_times_runs_knows_no_bytes() {
    assert_eq!(SharingRuns.rank(3, 4.0), 12.0);
    assert_eq!(SharingRuns.rank(0, 4.0), 4.0);
    assert_eq!(SharingRuns.rank(9, f64::NAN), 0.0);
}

#[test]
fn weights_decide_between_rules_that_disagree() {
    let facts = Facts {
        bytes: 1 << 20,
        demand: 1.0,
        sharing: 1,
        arriving: Some(Placement::Disk),
        temperature: Some(Temperature::Engine),
        floor: 0.0,
    };
    let place = |weights: Weights, facts| weights.judge(&Value::default(), &facts).placement;
    assert_eq!(place(Weights::default(), facts), Placement::Fast);
    let strict = Weights {
        layer_aware: 3.0,
        ..Weights::default()
    };
    assert_eq!(place(strict, facts), Placement::Disk);
    let cold = Facts {
        temperature: Some(Temperature::Cold),
        ..facts
    };
    assert_eq!(place(Weights::default(), cold), Placement::Disk);
    let crowded = Facts {
        floor: 100.0,
        arriving: None,
        temperature: None,
        ..facts
    };
    assert_eq!(place(Weights::default(), crowded), Placement::Disk);
    let none = Weights {
        layer_aware: 0.0,
        hot_files: f64::NAN,
        value: -1.0,
        sharing_runs: 0.0,
    };
    assert_eq!(place(none, facts), Placement::Disk);
}

#[test]
fn an_image_that_has_it_counts_as_a_request_to_come() {
    let weights = Weights {
        sharing_runs: 1.0,
        ..Weights::default()
    };
    let of = |demand, sharing| {
        let facts = Facts {
            bytes: 10 << 20,
            demand,
            sharing,
            arriving: None,
            temperature: None,
            floor: 0.0,
        };
        let priority = |weights: Weights| weights.priority(&Value::default(), &facts);
        (priority(Weights::default()), priority(weights))
    };
    let (value, both) = of(1.0, 5);
    assert_eq!(value, of(5.0, 1).0, "what nobody asked for yet");
    assert!(value > of(1.0, 4).0 && value < of(2.0, 5).0);
    assert!(both > value, "and the paper's rule adds to it");
    assert_eq!(
        of(3.0, 0).0,
        of(3.0, 1).0,
        "its own image is none that is to come"
    );
}

#[test]
fn the_margin_is_a_quarter_of_what_is_saved() {
    let weights = Weights::default();
    let of = |demand| {
        let facts = Facts {
            bytes: 1 << 20,
            demand,
            sharing: 1,
            arriving: None,
            temperature: None,
            floor: 0.0,
        };
        weights.priority(&Value::default(), &facts)
    };
    let above = |demand| of(demand) > of(100.0) + weights.margin();
    assert!(above(126.0) && !above(124.0));
    let none = Weights {
        value: f64::NAN,
        ..weights
    };
    assert_eq!(none.margin(), 0.0);
}

proptest! {
    #[test]
    fn lass_stages_a_run_that_ends_at_the_top_and_never_what_is_below(
        layers in proptest::collection::vec((0_u64..1000, 0_u64..1000, any::<bool>()), 0..40),
        parallel in 0_usize..6,
    ) {
        let layers: Vec<_> = layers
            .into_iter()
            .map(|(size, landed, running)| Progress {
                size,
                landed,
                rate: None,
                running,
            })
            .collect();
        let rule = LayerAware { parallel, pace: None };
        let staged: Vec<_> = (0..layers.len())
            .map(|index| rule.place(&layers, index) == Placement::Fast)
            .collect();
        prop_assert!(staged.is_sorted());
        let is_missing = |layer: &Progress| layer.landed < layer.size;
        let last = rule.last_downloading(&layers);
        prop_assert_eq!(last.is_some(), layers.iter().any(is_missing));
        prop_assert!(last.is_none_or(|last| is_missing(&layers[last]) && staged[last]));
    }

    #[test]
    fn any_history_and_command_is_judged(
        texts in proptest::collection::vec(".{0,80}", 0..20),
        arguments in proptest::collection::vec(".{0,40}", 0..20),
        environment in proptest::collection::vec(".{0,20}", 0..20),
    ) {
        let steps: Vec<_> = texts.into_iter().map(|created_by| Step { created_by }).collect();
        let start = Start { arguments, environment };
        let judged = HotImageFiles.judge(steps.len(), &steps, &start);
        prop_assert_eq!(judged.map(|all| all.len()), Some(steps.len()));
    }

    #[test]
    fn priorities_are_finite_and_grow_with_demand(
        bytes in any::<u64>(),
        (less, more) in (any::<f64>(), any::<f64>()),
        sharing in any::<u32>(),
        weights in proptest::array::uniform4(any::<f64>()),
    ) {
        let [layer_aware, hot_files, value, sharing_runs] = weights;
        let weights = Weights { layer_aware, hot_files, value, sharing_runs };
        let of = |demand| weights.judge(&Value::default(), &Facts {
            bytes, demand, sharing, arriving: None, temperature: None, floor: 0.0,
        }).priority;
        prop_assert!(of(less).is_finite() && of(less) >= 0.0);
        if less <= more {
            prop_assert!(of(less) <= of(more) * (1.0 + 1e-9));
        }
    }

    #[test]
    fn speeds_stay_numbers(runs in proptest::collection::vec((any::<u64>(), any::<f64>()), 0..100)) {
        let mut speed = Speed::HARD_DISK;
        for (bytes, seconds) in runs {
            speed.observe_run(bytes, seconds);
            speed.observe_first(bytes, seconds);
        }
        prop_assert!(speed.latency.is_finite() && speed.per_byte.is_finite());
        prop_assert!(speed.latency >= 0.0 && speed.per_byte >= 0.0);
    }
}
