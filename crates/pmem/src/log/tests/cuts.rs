//! Tests of the log with power cuts at every flush and fence of random workloads. Also tests that
//! each flush and each fence is necessary.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Driver, Model, OPTIONS, content, medium, open, put};
use crate::Log;
use crate::shadow::{ShadowMedium, Site};

/// Number of random workloads. With 30 workloads, the tests examine the log in more than 10 000
/// states after a power cut.
const WORKLOADS: u64 = 30;
const STEPS: usize = 160;

/// Counts the states after power cuts that one run examined.
#[derive(Default)]
struct CutReport {
    images: u64,
    sites: BTreeSet<Site>,
    failure: Option<String>,
}

/// Runs one workload with a power cut at each flush and fence. Flushes and fences at the place
/// `ignored` of the code have no effect. Stops at the first failure.
fn run(seed: u64, ignored: Option<Site>) -> CutReport {
    let medium = medium();
    if let Some(site) = ignored {
        medium.ignore(site);
    }
    let model = Arc::new(Mutex::new(Model::default()));
    let seen = Arc::new(Mutex::new(CutReport::default()));
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    let (of_probe, to_probe) = (Arc::clone(&model), Arc::clone(&seen));
    medium.probe(Some(Arc::new(move |medium: &ShadowMedium| {
        let mut seen = to_probe.lock();
        if seen.failure.is_none() {
            let model = of_probe.lock().clone();
            seen.failure = survive(medium, model, &mut random.lock(), &mut seen).err();
        }
    })));
    let done = Driver::new(&medium, Arc::clone(&model), seed).and_then(|mut driver| {
        for _ in 0..STEPS {
            if seen.lock().failure.is_some() {
                break;
            }
            driver.step()?;
        }
        Ok(())
    });
    medium.probe(None);
    let mut seen = std::mem::take(&mut *seen.lock());
    seen.sites.extend(medium.sites().into_keys());
    if seen.failure.is_none() {
        seen.failure = done.err().map(|error| error.to_string());
    }
    seen
}

/// Opens the medium in the state that a power cut at one moment leaves, compares it with the model,
/// uses the log, and does the same again after another power cut.
fn survive(
    medium: &ShadowMedium,
    mut model: Model,
    random: &mut fastrand::Rng,
    seen: &mut CutReport,
) -> Result<(), String> {
    // A killed process leaves all its stores in the CPU cache, and a power cut afterwards may lose
    // them.
    let killed = random.u32(0..4) == 0;
    let mut image = if killed {
        medium.fork()
    } else {
        medium.cut(random.u64(..))
    };
    if model.opened && !killed && random.u32(0..8) == 0 {
        image = without_a_head(&image, random);
    }
    let in_use = reopen(&image, &mut model, seen)?;
    if random.bool() {
        // The uncertain values are removed here. If the commit word of a replaced value had not
        // been cleared, the old value would reappear.
        for key in model.values.keys().cloned().collect::<Vec<_>>() {
            if random.bool() {
                in_use.remove(&key).map_err(|error| error.to_string())?;
                model.values.remove(&key);
            }
        }
        let bytes = content(random, 300);
        if put(&in_use, b"later", &bytes).is_ok() {
            model.values.insert(b"later".to_vec(), bytes);
        }
    }
    let again = image.cut(random.u64(..));
    seen.sites.extend(image.sites().into_keys());
    reopen(&again, &mut model, seen).map(drop)
}

fn reopen(
    image: &ShadowMedium,
    model: &mut Model,
    seen: &mut CutReport,
) -> Result<Log<ShadowMedium>, String> {
    seen.images += 1;
    let (log, found) = Log::open(image.clone(), OPTIONS).map_err(|error| error.to_string())?;
    model.check(&log)?;
    if found.dropped + found.damaged > 0 {
        return Err(format!("a cut is no damage: {found:?}"));
    }
    Ok(log)
}

/// Damages one of the two copies of the log's head.
fn without_a_head(image: &ShadowMedium, random: &mut fastrand::Rng) -> ShadowMedium {
    let mut bytes = image.bytes();
    let at = if random.bool() { 0 } else { 4096 };
    bytes[at + random.usize(..40)] ^= 1 << random.u32(..8);
    ShadowMedium::of(bytes)
}

#[test]
fn after_a_power_cut_exactly_the_committed_values_exist() {
    let started_at = std::time::Instant::now();
    let mut images = 0;
    for seed in 0..WORKLOADS {
        let seen = run(seed, None);
        assert_eq!(seen.failure, None, "workload {seed}");
        images += seen.images;
    }
    println!("{images} images in {:?}", started_at.elapsed());
    assert!(images >= 10_000, "{images} images");
}

#[test]
fn no_flush_and_no_fence_can_be_left_out() {
    let sites: BTreeSet<_> = (0..2).flat_map(|seed| run(seed, None).sites).collect();
    assert_eq!(sites.len(), 14, "{sites:?}");
    let needless: Vec<_> = sites
        .into_iter()
        .filter(|site| {
            let found = (0..4 * WORKLOADS).find_map(|seed| run(seed, Some(*site)).failure);
            println!("{site:?}: {found:?}");
            found.is_none()
        })
        .collect();
    assert!(needless.is_empty(), "not missed: {needless:?}");
}

#[test]
fn a_log_is_usable_to_its_capacity_after_a_power_cut() {
    let medium = medium();
    let log = open(&medium);
    let mut random = fastrand::Rng::with_seed(1);
    let mut writer = log.begin(b"cut").unwrap();
    writer.write(&content(&mut random, 9000)).unwrap();
    let again = open(&medium.cut(1));
    assert_eq!(again.used(), 0);
    let mut kept = 0u8;
    while put(&again, &[kept], &content(&mut random, 1000)).is_ok() {
        kept += 1;
    }
    assert!(
        again.used() > again.capacity() * 9 / 10,
        "{} of {}",
        again.used(),
        again.capacity()
    );
}
