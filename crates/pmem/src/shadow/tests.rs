//! Tests of the simulated medium itself. All crash tests of the log rely on the guarantees of this
//! medium.

use proptest::prelude::*;

use super::*;

const WORDS: usize = 24;
/// Number of words in one line.
const LINE_WORDS: usize = 8;
const LANES: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    Store(usize, u64),
    Flush(usize),
    Fence,
    Lane(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..WORDS, 1..100_u64).prop_map(|(word, value)| Step::Store(word, value)),
        3 => (0..WORDS).prop_map(Step::Flush),
        2 => Just(Step::Fence),
        1 => (0..LANES).prop_map(Step::Lane),
    ];
    prop::collection::vec(step, 0..80)
}

/// All values that one word had, in the order of their stores.
#[derive(Clone)]
struct History {
    values: Vec<u64>,
    /// Index of the oldest value that a power cut may leave.
    durable: usize,
    /// For each lane, the index of the value that the last flush of this lane covers.
    flushed: [Option<usize>; LANES],
}

fn word(medium: &ShadowMedium, index: usize) -> u64 {
    let mut bytes = [0; 8];
    let offset = index as u64 * WORD;
    medium.read(offset, &mut bytes).expect("within the medium");
    u64::from_le_bytes(bytes)
}

/// Runs the steps on a medium and records the history of each word.
fn run(steps: &[Step]) -> (ShadowMedium, Vec<History>) {
    let medium = ShadowMedium::new(WORDS * 8);
    let first = History {
        values: vec![0],
        durable: 0,
        flushed: [None; LANES],
    };
    let mut words = vec![first; WORDS];
    let mut lane = 0;
    for step in steps {
        match *step {
            Step::Store(index, value) => {
                let offset = index as u64 * WORD;
                medium.store(offset, value).expect("within the medium");
                words[index].values.push(value);
            }
            Step::Flush(index) => {
                let offset = index as u64 * WORD;
                medium.flush(offset, WORD).expect("within the medium");
                let line = index / LINE_WORDS * LINE_WORDS;
                for word in &mut words[line..line + LINE_WORDS] {
                    word.flushed[lane] = Some(word.values.len() - 1);
                }
            }
            Step::Fence => {
                medium.fence().expect("a medium that works");
                for word in &mut words {
                    let flushed = word.flushed[lane].take();
                    word.durable = word.durable.max(flushed.unwrap_or(0));
                }
            }
            Step::Lane(next) => {
                medium.lane(u32::try_from(next).unwrap_or(0));
                lane = next;
            }
        }
    }
    (medium, words)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_leaves_a_value_that_the_word_had_since_it_was_durable(
        steps in steps(),
        seed: u64,
    ) {
        let (medium, words) = run(&steps);
        let (lost, whole, mixed) = (medium.cut(0), medium.cut(1), medium.cut(seed));
        for (index, history) in words.iter().enumerate() {
            let left = &history.values[history.durable..];
            prop_assert_eq!(word(&lost, index), left[0], "word {}", index);
            prop_assert_eq!(Some(&word(&whole, index)), left.last(), "word {}", index);
            prop_assert!(left.contains(&word(&mixed, index)), "word {}", index);
            prop_assert_eq!(Some(&word(&medium, index)), left.last(), "visible {}", index);
        }
    }

    #[test]
    fn a_line_survives_whole_or_not_at_all_in_every_fourth_cut(steps in steps(), seed: u64) {
        let (medium, words) = run(&steps);
        let image = medium.cut(seed / 4 * 4 + 3);
        for line in 0..WORDS / LINE_WORDS {
            let all = line * LINE_WORDS..(line + 1) * LINE_WORDS;
            let is = |value: fn(&History) -> u64| {
                all.clone().all(|at| word(&image, at) == value(&words[at]))
            };
            let newest = is(|history| *history.values.last().expect("a first value"));
            prop_assert!(newest || is(|history| history.values[history.durable]), "line {}", line);
        }
    }
}

#[test]
fn a_flush_without_a_fence_of_its_lane_guarantees_nothing() {
    let medium = ShadowMedium::new(64);
    medium.store(0, 7).expect("within the medium");
    medium.fence().expect("a medium that works");
    assert_eq!(word(&medium.cut(0), 0), 0, "a fence without a flush");
    medium.flush(0, 8).expect("within the medium");
    assert_eq!(word(&medium.cut(0), 0), 0, "a flush without a fence");
    medium.lane(1);
    medium.fence().expect("a medium that works");
    assert_eq!(word(&medium.cut(0), 0), 0, "the fence of another lane");
    medium.lane(0);
    medium.fence().expect("a medium that works");
    assert_eq!(word(&medium.cut(0), 0), 7);
}

#[test]
fn a_fork_has_all_stores_and_shares_none_of_the_later_ones() {
    let medium = ShadowMedium::new(64);
    medium.write(8, b"before..").expect("within the medium");
    let fork = medium.fork();
    medium.write(8, b"after...").expect("within the medium");
    fork.write(16, b"of fork.").expect("within the medium");
    assert_eq!(&fork.bytes()[8..24], b"before..of fork.");
    assert_eq!(&medium.bytes()[8..24], b"after...\0\0\0\0\0\0\0\0");
    assert_eq!(fork.cut(0).bytes(), [0; 64], "the stores are not durable");
}

#[test]
fn an_ignored_site_is_counted_and_has_no_effect() {
    let medium = ShadowMedium::new(64);
    let persist = |value| {
        medium.store(0, value).expect("within the medium");
        medium.flush(0, 8).expect("within the medium");
        medium.fence().expect("a medium that works");
    };
    persist(1);
    let sites: Vec<Site> = medium.sites().into_keys().collect();
    assert_eq!(sites.len(), 2, "a flush and a fence");
    for site in sites {
        let medium_before = word(&medium.cut(0), 0);
        medium.ignore(site);
        persist(9);
        assert_eq!(word(&medium.cut(0), 0), medium_before, "{site:?}");
    }
    assert!(medium.sites().into_values().all(|count| count == 3));
}

#[test]
fn the_probe_sees_the_medium_before_each_flush_and_fence() {
    let medium = ShadowMedium::new(64);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let by_probe = Arc::clone(&seen);
    medium.probe(Some(Arc::new(move |medium: &ShadowMedium| {
        by_probe.lock().push(word(&medium.cut(0), 0));
    })));
    medium.store(0, 5).expect("within the medium");
    medium.flush(0, 8).expect("within the medium");
    medium.fence().expect("a medium that works");
    medium.flush(0, 8).expect("within the medium");
    medium.probe(None);
    medium.fence().expect("a medium that works");
    assert_eq!(*seen.lock(), [0, 0, 5]);
}

#[test]
fn a_poisoned_line_fails_its_own_inspection_and_a_read_fails_the_medium() {
    let medium = ShadowMedium::new(256);
    medium.poison(70);
    let failed = |result: Result<(), Error>| match result {
        Err(Error::Medium { offset, .. }) => Some(offset),
        _ => None,
    };
    let mut bytes = [0; 64];
    assert_eq!(failed(medium.inspect(64, &mut bytes)), Some(64));
    assert_eq!(failed(medium.inspect(1, &mut bytes)), Some(64));
    assert_eq!(failed(medium.inspect(0, &mut bytes)), None);
    assert_eq!(failed(medium.inspect(128, &mut bytes)), None);
    assert_eq!(failed(medium.read(100, &mut bytes[..1])), Some(64));
    assert_eq!(failed(medium.read(0, &mut bytes)), Some(0), "all accesses");
    assert_eq!(failed(medium.write(128, b"x")), Some(128));
    medium.fail_after(Some(2));
    assert_eq!(failed(medium.store(0, 1)), None);
    assert_eq!(failed(medium.flush(0, 8)), None);
    assert_eq!(failed(medium.fence()), Some(0));
    medium.fail_after(None);
    assert_eq!(failed(medium.fence()), None);
}
