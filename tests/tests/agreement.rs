//! Compares the miss ratios of pierhead's eviction policies with those of libCacheSim on the same
//! request traces. The package libcachesim (PyPI, GPL) runs in a separate Python process, so that
//! pierhead does not link it. libcachesim gets the traces that `pierhead-replay --export` writes,
//! and cache sizes in bytes. Policies with one definition must agree within [`EXACT`]. Policies
//! whose papers leave details open must agree within [`CLOSE`] under `--parameters libcachesim`. To
//! compare your own traces, run `PIERHEAD_TRACES=FOLDER cargo test -p pierhead-tests --test
//! agreement -- --nocapture`.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use pierhead_tests::paths;
use serde_json::Value;

/// Maximum difference of miss ratios for FIFO, LRU, SIEVE and Belady, which have one definition.
const EXACT: f64 = 0.002;
/// Maximum difference of miss ratios for the other policies, with the parameters of libCacheSim.
const CLOSE: f64 = 0.01;

const POLICIES: &[(&str, f64)] = &[
    ("fifo", EXACT),
    ("lru", EXACT),
    ("sieve", EXACT),
    ("belady", EXACT),
    ("s3-fifo", CLOSE),
    ("arc", CLOSE),
    ("gdsf", CLOSE),
    ("lhd", CLOSE),
];

const SIZES: &str = "0.1%,1%,10%";

#[test]
fn popular_objects_of_many_sizes() {
    assert_agreement("zipf", &zipf(20_000, 3000, 1));
}

#[test]
fn popular_objects_of_one_size() {
    let trace = zipf(20_000, 3000, 2)
        .into_iter()
        .map(|(key, _)| (key, 4096));
    assert_agreement("one-size", &trace.collect::<Vec<_>>());
}

#[test]
fn scans_between_popular_objects() {
    let mut trace = Vec::new();
    for (at, request) in zipf(20_000, 2000, 3).into_iter().enumerate() {
        trace.push(request);
        // The trace has runs of objects with one request each, and a loop that is slightly longer
        // than the cache.
        if at % 5000 < 1000 {
            trace.push((1_000_000 + at as u64, 3000));
        }
        if at % 4 == 0 {
            trace.push((2_000_000 + (at as u64 / 4) % 400, 5000));
        }
    }
    assert_agreement("scans", &trace);
}

#[test]
fn objects_as_large_as_the_cache_and_larger() {
    let sizes = [1, 999, 1000, 1001, 5000, 1, 64, 500];
    let mut random = fastrand::Rng::with_seed(4);
    let trace: Vec<_> = (0..5000)
        .map(|_| random.u64(0..400))
        .map(|key| {
            (
                key,
                sizes[(key % 8) as usize] * if key == 7 { 1 << 16 } else { 1 },
            )
        })
        .collect();
    assert_agreement("misfits", &trace);
}

#[test]
fn degenerate_traces() {
    // libCacheSim's S3-FIFO cannot divide a cache of a few bytes into its queues.
    assert_agreement_at("single", &[(1, 100)], "90B,100B,1000B");
    assert_agreement_at("same", &[(1, 100); 50], "90B,100B,1000B");
    let trace: Vec<_> = (0..3000_u64)
        .map(|at| (at % 70, u32::from(at % 3 != 0) * 50))
        .collect();
    assert_agreement_at("zeros", &trace, "100B,500B,2KiB");
}

#[test]
fn traces_in_the_folder_of_the_user() {
    let Some(folder) = env::var_os("PIERHEAD_TRACES") else {
        // The traces of `PIERHEAD_TRACES` are optional, so the test passes without this variable.
        return;
    };
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("PIERHEAD_TRACES is a folder")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let mut replayed = 0;
    let mut wrong = Vec::new();
    for file in files {
        match compare(&file, SIZES) {
            Ok(found) => {
                replayed += 1;
                wrong.extend(found);
            }
            // Prints the names of files that are not a trace or have no sizes.
            Err(refused) => println!("{}: not compared: {}", file.display(), refused.trim()),
        }
    }
    assert!(replayed > 0, "no trace in {}", Path::new(&folder).display());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A trace of (key, size). The keys follow a Zipf distribution with exponent 0.9. Each key has a
/// random size between 32 bytes and 16 MiB.
fn zipf(requests: usize, keys: u64, seed: u64) -> Vec<(u64, u32)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sum = 0.0;
    let shares: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += (rank as f64).powf(-0.9);
            sum
        })
        .collect();
    let sizes: Vec<u32> = shares.iter().map(|_| 1 << random.u32(5..24)).collect();
    let sizes: Vec<u32> = sizes
        .iter()
        .map(|size| size + random.u32(0..*size))
        .collect();
    (0..requests)
        .map(|_| {
            let at = random.f64() * sum;
            let rank = shares
                .partition_point(|share| *share < at)
                .min(shares.len() - 1);
            (rank as u64, sizes[rank])
        })
        .collect()
}

#[track_caller]
fn assert_agreement(name: &str, trace: &[(u64, u32)]) {
    assert_agreement_at(name, trace, SIZES);
}

#[track_caller]
fn assert_agreement_at(name: &str, trace: &[(u64, u32)], sizes: &str) {
    let folder = paths::scratch("agreement").expect("a folder");
    let path = folder.path().join(format!("{name}.csv"));
    let mut text = String::from("time,key,size\n");
    for (at, (key, size)) in trace.iter().enumerate() {
        // The smallest key is 1, because libCacheSim's LHD uses 0 for a missing key.
        text.push_str(&format!("{},{},{size}\n", at / 10, key + 1));
    }
    fs::write(&path, text).expect("a written trace");
    let wrong = compare(&path, sizes).unwrap_or_else(|refused| panic!("{refused}"));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns the differences of miss ratios that exceed the maximum. An error when pierhead cannot
/// read the trace.
fn compare(trace: &Path, sizes: &str) -> Result<Vec<String>, String> {
    let folder = paths::scratch("agreement").expect("a folder");
    let exported = folder.path().join("exported.oracleGeneral.bin");
    let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
    let names = names.join(",");
    let output = Command::new(paths::pierhead_replay().expect("a pierhead-replay"))
        .args(["--json", "--parameters", "libcachesim", "--size", sizes])
        .args(["--policy", &names, "--trace"])
        .arg(trace)
        .arg("--export")
        .arg(&exported)
        .output()
        .expect("pierhead-replay runs");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    let rows = document["rows"].as_array().expect("rows");
    let mut sizes: Vec<String> = rows
        .iter()
        .map(|row| row["size_bytes"].to_string())
        .collect();
    sizes.sort();
    sizes.dedup();
    let theirs = libcachesim(&exported, &sizes.join(","), &names);
    let mut wrong = Vec::new();
    for row in rows {
        let (policy, size) = (
            row["policy"].as_str().expect("a policy"),
            &row["size_bytes"],
        );
        let ours = ["object_miss_ratio", "byte_miss_ratio"].map(|ratio| row[ratio].as_f64());
        let [object, byte] = theirs[&format!("{policy} {size}")];
        let worst = ours
            .into_iter()
            .zip([object, byte])
            .map(|(ours, theirs)| (ours.expect("a ratio") - theirs).abs())
            .fold(0.0, f64::max);
        let (_, bound) = POLICIES
            .iter()
            .find(|(name, _)| *name == policy)
            .expect("asked for");
        let line = format!(
            "{} {policy} {}: differs by {worst:.4}: ours {ours:.4?}, theirs [{object:.4}, {byte:.4}]",
            trace.file_name().unwrap_or_default().display(),
            row["size"],
        );
        println!("{line}");
        if worst > *bound {
            wrong.push(line);
        }
    }
    Ok(wrong)
}

fn libcachesim(trace: &Path, sizes: &str, policies: &str) -> BTreeMap<String, [f64; 2]> {
    let python = paths::tools()
        .expect("a build folder")
        .join("libcachesim/bin/python");
    assert!(
        python.exists(),
        "{} is missing: run `cargo xtask install`, which installs libcachesim",
        python.display()
    );
    let found = trace.with_file_name("found.json");
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agreement.py"))
        .arg(trace)
        .args([sizes, policies])
        .arg(&found)
        .output()
        .expect("python runs");
    assert!(
        output.status.success(),
        "libcachesim failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = fs::read(found).expect("a file with the results");
    serde_json::from_slice(&text).expect("as JSON")
}
