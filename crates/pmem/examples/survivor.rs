//! Crash test of the log: writes values that follow from a seed, and checks them after a power cut.
//!
//! ```text
//! survivor class DIR CLASS          # fails unless a region in DIR is of that class
//! survivor write DIR SEED [STEPS]   # prints "committed N" when step N is durable; without
//!                                   # STEPS, until it is killed
//! survivor check DIR SEED LAST      # fails unless DIR holds what the steps up to LAST left
//!                                   # there, and nothing else
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use pierhead_pmem::{Config, Log, Medium as _, Options, Region};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Size of the region in bytes: twice the space of all keys with their largest values, so that
/// compaction runs and space never runs out.
const REGION: u64 = 48 << 20;
const SEGMENT: u64 = 256 << 10;
const KEYS: u64 = 24;

/// Maximum size of large and small values in bytes: a large value spans several segments, and small
/// values share one segment.
const MAX_LARGE_VALUE: u64 = 4 * SEGMENT;
const MAX_SMALL_VALUE: u64 = 4 << 10;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["class", dir, class] => expect_class(Path::new(dir), class),
        ["write", dir, seed] => write(Path::new(dir), seed.parse()?, u64::MAX),
        ["write", dir, seed, steps] => write(Path::new(dir), seed.parse()?, steps.parse()?),
        ["check", dir, seed, last] => check(Path::new(dir), seed.parse()?, last.parse()?),
        _ => Err("survivor class DIR CLASS | write DIR SEED [STEPS] | check DIR SEED LAST".into()),
    }
}

fn expect_class(dir: &Path, expected: &str) -> Outcome<()> {
    let path = dir.join("class");
    let region = Region::open(&Config {
        path: path.clone(),
        size: 1 << 20,
    })?;
    std::fs::remove_file(path)?;
    println!("{}", region.report());
    if region.class().as_str() != expected {
        return Err(format!(
            "{} is of class {}, not {expected}",
            dir.display(),
            region.class()
        )
        .into());
    }
    Ok(())
}

/// One change of one key. The seed and the number of the step determine the change.
struct Step {
    key: Vec<u8>,
    change: Change,
    /// Whether the step first starts another value of the same key and drops it. The dropped value
    /// must never become visible.
    abandons: bool,
}

enum Change {
    Remove,
    Put { len: u64 },
}

impl Step {
    fn of(seed: u64, number: u64) -> Self {
        let dice = mix(seed ^ mix(number));
        let key = format!("key {}", dice % KEYS).into_bytes();
        let change = match (dice >> 16) % 8 {
            0 => Change::Remove,
            1 => Change::Put {
                len: (dice >> 24) % MAX_LARGE_VALUE,
            },
            _ => Change::Put {
                len: (dice >> 24) % MAX_SMALL_VALUE,
            },
        };
        Self {
            key,
            change,
            abandons: (dice >> 8).is_multiple_of(5),
        }
    }
}

/// Returns the 8 bytes at `8 * index` of the value that a step writes.
fn word(seed: u64, number: u64, index: u64) -> [u8; 8] {
    mix(seed ^ mix(number) ^ index).to_le_bytes()
}

/// The finalizer of SplitMix64: adjacent numbers give unrelated words.
fn mix(number: u64) -> u64 {
    let a = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

fn content(seed: u64, number: u64, len: u64) -> Outcome<Vec<u8>> {
    let mut bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|index| word(seed, number, index))
        .collect();
    bytes.truncate(usize::try_from(len)?);
    Ok(bytes)
}

fn open(dir: &Path, seed: u64) -> Outcome<Log<Region>> {
    let region = Region::open(&Config {
        path: dir.join(format!("survivor-{seed}")),
        size: REGION,
    })?;
    let (log, recovered) = Log::open(region, Options { segment: SEGMENT })?;
    println!("{} ({recovered:?})", log.medium().report());
    if recovered.dropped + recovered.damaged > 0 {
        return Err(format!("a cut is no damage: {recovered:?}").into());
    }
    Ok(log)
}

fn write(dir: &Path, seed: u64, steps: u64) -> Outcome<()> {
    let log = open(dir, seed)?;
    let mut out = std::io::stdout().lock();
    for number in 0..steps {
        let step = Step::of(seed, number);
        if step.abandons {
            let mut writer = log.begin(&step.key)?;
            writer.write(&content(seed, number, MAX_SMALL_VALUE)?)?;
        }
        match step.change {
            Change::Remove => {
                log.remove(&step.key)?;
            }
            Change::Put { len } => {
                let mut writer = log.begin(&step.key)?;
                // The content is written in pieces, in the same way as it would arrive from a
                // network.
                for piece in content(seed, number, len)?.chunks(64 << 10) {
                    writer.write(piece)?;
                }
                writer.commit(&number.to_le_bytes())?;
            }
        }
        writeln!(out, "committed {number}")?;
        out.flush()?;
    }
    Ok(())
}

/// The expected value of a key: the number of the step that wrote the value, and the length of the
/// value. `None`: the key has no value.
type Held = Option<(u64, u64)>;

fn apply(step: &Step, number: u64) -> Held {
    match step.change {
        Change::Remove => None,
        Change::Put { len } => Some((number, len)),
    }
}

fn check(dir: &Path, seed: u64, last: u64) -> Outcome<()> {
    let log = open(dir, seed)?;
    let mut model: BTreeMap<Vec<u8>, Held> = (0..KEYS)
        .map(|key| (format!("key {key}").into_bytes(), None))
        .collect();
    for number in 0..=last {
        let step = Step::of(seed, number);
        let held = apply(&step, number);
        model.insert(step.key, held);
    }
    // The step after `last` was running when the power was cut. This step may be durable, although
    // its line "committed N" was not printed.
    let under_way = Step::of(seed, last + 1);
    let mut visible = 0;
    for (key, expected) in &model {
        let held = held(&log, seed, key)?;
        visible += u64::from(held.is_some());
        let later = under_way.key == *key && held == apply(&under_way, last + 1);
        if held != *expected && !later {
            let name = String::from_utf8_lossy(key);
            return Err(format!("{name:?} holds {held:?}, not {expected:?} (step, length)").into());
        }
    }
    let mut listed = 0_u64;
    log.entries(&mut |_| listed += 1);
    if listed != visible {
        return Err(format!("{listed} values are listed, {visible} belong there").into());
    }
    println!("{visible} values of {} steps are there, whole", last + 1);
    Ok(())
}

/// Reads the value of `key`, and compares every byte with the content of its step.
fn held(log: &Log<Region>, seed: u64, key: &[u8]) -> Outcome<Held> {
    let Some(entry) = log.get(key)? else {
        return Ok(None);
    };
    let number = u64::from_le_bytes(entry.meta().try_into()?);
    let mut bytes = vec![0; usize::try_from(entry.len())?];
    log.read_at(&entry, 0, &mut bytes)?;
    if bytes != content(seed, number, entry.len())? {
        let name = String::from_utf8_lossy(key);
        return Err(format!("{name:?} holds other bytes than step {number} wrote").into());
    }
    Ok(Some((number, entry.len())))
}
