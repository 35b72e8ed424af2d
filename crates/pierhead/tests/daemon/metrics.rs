//! Tests of the metrics of all crates: naming rules, `promtool`, and the page
//! docs/reference/metrics.md.

use std::collections::{BTreeSet, HashMap};
use std::io::{ErrorKind, Seek as _, Write as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pierhead_host::pressure::{PressureMonitor, Resource};
use pierhead_host::{BackgroundWork, CpuThrottlingMetrics};
use pierhead_testkit::http::Request;
use pierhead_testkit::images::Image;
use pierhead_testkit::metrics::metrics_text;
use pierhead_testkit::registry::{FakeRegistry, RateLimit};

use crate::harness::{Daemon, soon};

/// One sample in the text of the metrics.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Self {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let Some((name, labels)) = series.split_once('{') else {
            return Self {
                name: series,
                labels: Vec::new(),
            };
        };
        let labels = labels.strip_suffix("\"}").unwrap_or_default();
        let pairs = labels.split("\",").map(|pair| {
            let pair = pair.split_once("=\"");
            pair.expect("a label and its value")
        });
        Self {
            name,
            labels: pairs.collect(),
        }
    }
}

fn is_snake_case(name: &str) -> bool {
    let starts = name.starts_with(|first: char| first.is_ascii_lowercase());
    let is_allowed = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
    starts && name.chars().all(is_allowed) && !name.contains("__") && !name.ends_with('_')
}

/// Returns the violations of the naming rules by a metric family of this type.
fn faults_of_name(name: &str, kind: &str) -> Vec<&'static str> {
    let mut faults = Vec::new();
    let parts: Vec<&str> = name.split('_').collect();
    let mut must_not = |is_wrong: bool, fault| {
        if is_wrong {
            faults.push(fault);
        }
    };
    must_not(!is_snake_case(name), "is not snake_case");
    must_not(
        !matches!(parts[0], "pierhead" | "process"),
        "has a prefix that is not ours",
    );
    for unit in [
        "ms",
        "milliseconds",
        "us",
        "minutes",
        "hours",
        "kb",
        "mb",
        "gb",
        "kib",
        "mib",
        "gib",
        "kilobytes",
        "percent",
        "mbit",
        "bits",
    ] {
        must_not(parts.contains(&unit), "has a unit that is not a base unit");
    }
    // A metric family name ends with its unit. The suffixes that the encoder adds for the type,
    // such as `_total`, do not count.
    for suffix in ["_total", "_count", "_sum", "_bucket", "_info", "_created"] {
        must_not(name.ends_with(suffix), "ends with the suffix of a type");
    }
    let is_rate = name.ends_with("_bytes_per_second");
    for unit in ["bytes", "seconds"] {
        must_not(
            parts.contains(&unit) && parts.last() != Some(&unit) && !is_rate,
            "does not end with its unit",
        );
    }
    let is_of_a_rate = parts.iter().any(|it| matches!(*it, "bandwidth" | "speed"));
    must_not(is_of_a_rate && !is_rate, "is a rate in no unit");
    must_not(is_rate && kind != "gauge", "is a rate and no gauge");
    must_not(name.contains("seconds") && is_rate, "has two units");
    faults
}

/// Returns the violations of the rules for labels by one sample.
fn faults_of_labels(sample: &Sample<'_>) -> Vec<String> {
    let mut faults = Vec::new();
    for (label, value) in &sample.labels {
        if !is_snake_case(label) {
            faults.push(format!("{label} is not snake_case"));
        }
        // The label `address` has the spelling of the configuration, and the label `le` of the last
        // bucket is `+Inf`.
        if !["address", "le"].contains(label) && value.chars().any(char::is_uppercase) {
            faults.push(format!("{label}={value:?} is not lower case"));
        }
        let is_class = ["1xx", "2xx", "3xx", "4xx", "5xx", "429", "none", "other"].contains(value);
        if *label == "status" && !is_class {
            faults.push(format!("{label}={value:?} is no class"));
        }
        // A label with the class of a response status must have the name `status`.
        if *label == "class" && value.starts_with(|first: char| first.is_ascii_digit()) {
            faults.push(format!("{label}={value:?} is spelled in a second way"));
        }
    }
    faults
}

/// Converts OpenMetrics text to the older Prometheus format, which `promtool check metrics` reads.
fn as_text_format(text: &str) -> String {
    let kinds: HashMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    let mut converted = String::new();
    for line in text.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        let comment = ["# HELP ", "# TYPE "].into_iter().find_map(|kind| {
            let (name, rest) = line.strip_prefix(kind)?.split_once(' ')?;
            Some((kind, name, rest))
        });
        let Some((comment, name, rest)) = comment else {
            converted += &format!("{line}\n");
            continue;
        };
        let (suffix, rest) = match (kinds.get(name), rest) {
            (Some(&"counter"), rest) => ("_total", rest),
            (Some(&"info"), "info") => ("_info", "gauge"),
            (Some(&"info"), rest) => ("_info", rest),
            (_, rest) => ("", rest),
        };
        converted += &format!("{comment}{name}{suffix} {rest}\n");
    }
    converted
}

/// Returns the errors that `promtool` reports, or `None` if `promtool` is not installed.
fn promtool(text: &str) -> Option<String> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(as_text_format(text).as_bytes())
        .expect("room");
    file.rewind().expect("a file");
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(file)
        .output();
    let has = !matches!(&checked, Err(error) if error.kind() == ErrorKind::NotFound);
    if !pierhead_testkit::skip::unless("promtool", has) {
        return None;
    }
    let checked = checked.expect("pierhead runs");
    let found = [checked.stdout, checked.stderr].concat();
    let found = String::from_utf8_lossy(&found).into_owned();
    (!checked.status.success() || !found.is_empty()).then_some(found)
}

/// Returns the text of the metrics that a daemon has only on some hosts: metrics of resource pressure
/// and of a CPU quota.
fn metrics_of_some_hosts() -> String {
    let host = tempfile::tempdir().expect("a folder");
    let stat = host.path().join("cpu.stat");
    std::fs::write(&stat, "nr_periods 1\nnr_throttled 1\nthrottled_usec 1\n").expect("room");
    let folder = host.path().join("proc/pressure");
    std::fs::create_dir_all(&folder).expect("room");
    let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    std::fs::write(folder.join("memory"), pressure).expect("room");
    let resources = [Resource::Memory];
    let key = "limits.pause_under";
    let mut monitor = PressureMonitor::new(BackgroundWork::default(), &resources, key, host.path());
    let begin = Instant::now();
    for reading in 0..2 {
        let passed = PressureMonitor::INTERVAL;
        monitor.update(begin + passed * reading, passed);
    }
    metrics_text(|registry| {
        CpuThrottlingMetrics::new(stat).register(registry);
        let pressure = registry.sub_registry_with_prefix("pierhead_pressure");
        monitor.metrics().register(pressure);
    })
}

/// Returns the names that the sources of the crates pass to the functions that register a metric.
/// prometheus-client omits a family without samples from its output, so this is the only complete
/// list.
fn registered_names(sources: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(sources).expect("sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("tests") {
            names.append(&mut registered_names(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            let source = std::fs::read_to_string(&path).expect("UTF-8");
            let product = source.split("#[cfg(test)]").next().unwrap_or_default();
            for call in ["register(", "register_with_unit(", "encode_descriptor("] {
                let arguments = product.split(call).skip(1);
                let literals = arguments.filter_map(|it| it.trim_start().strip_prefix('"'));
                let literals = literals.filter_map(|it| it.split('"').next());
                names.extend(literals.map(str::to_owned));
            }
        }
    }
    names
}

/// Asserts that docs/reference/metrics.md lists each metric of the daemon's text `of_daemon` and of
/// [`metrics_of_some_hosts`], and no other metrics except metrics of the process, which depend on
/// the kernel. `cargo xtask docs --write` writes the page.
fn is_on_the_page(of_daemon: &str) {
    const MARKER: &str =
        "<!-- Generated from the code by `cargo xtask docs --write`. Edit the code instead. -->";
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/metrics.md"
    );
    let written = std::fs::read_to_string(page).unwrap_or_default();
    let text = &format!("{of_daemon}{}", metrics_of_some_hosts());
    let mut kinds = HashMap::new();
    let mut labels: HashMap<String, BTreeSet<String>> = HashMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        {
            kinds.insert(name, kind);
        } else if !line.starts_with('#') {
            let sample = Sample::parse(line);
            let family = kinds.keys().filter(|name| sample.name.starts_with(**name));
            let Some(family) = family.max_by_key(|name| name.len()) else {
                continue;
            };
            let names = sample.labels.iter().map(|(name, _)| (*name).to_owned());
            let of = labels.entry((*family).to_owned()).or_default();
            of.extend(names.filter(|name| name != "le"));
        }
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let registered = registered_names(&sources);
    let lacking = registered.iter().filter(|name| {
        let units = ["", "_bytes", "_seconds"].map(|unit| format!("{name}{unit}"));
        let mut families = kinds.keys().map(|family| format!("_{family}"));
        !families.any(|family| {
            units
                .iter()
                .any(|name| family.ends_with(&format!("_{name}")))
        })
    });
    let lacking: Vec<_> = lacking.collect();
    assert!(registered.len() > 50, "{registered:?}");
    assert!(
        lacking.is_empty(),
        "this test creates no sample of {lacking:?}"
    );
    let rows: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '))
        .map(|(family, help)| {
            let kind = kinds.get(family).copied().unwrap_or_default();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let names = labels.get(family).into_iter().flatten();
            let names: Vec<_> = names.map(|name| format!("`{name}`")).collect();
            let (names, help) = (names.join(", "), help.trim_end_matches('.'));
            format!("| `{family}{suffix}` | {kind} | {names} | {help} |")
        })
        .collect();
    let rows: Vec<_> = rows.into_iter().collect();
    if std::env::var_os("PIERHEAD_WRITE_DOCS").is_some() {
        let by_hand = written.split(MARKER).next().unwrap_or_default();
        let head = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
        let page_text = format!("{by_hand}{MARKER}\n\n{head}{}\n", rows.join("\n"));
        std::fs::write(page, page_text).expect("the page is writable");
        return;
    }
    let fix = "run `cargo xtask docs --write`";
    for row in &rows {
        assert!(written.contains(row), "metrics.md lacks {row}: {fix}");
    }
    for line in written.lines().filter(|line| line.starts_with("| `")) {
        let is_known = line.contains("`process_") || rows.iter().any(|row| row == line);
        assert!(is_known, "metrics.md has {line}: {fix}");
    }
}

#[test]
fn a_violation_of_the_naming_rules_is_found() {
    for (name, kind) in [
        ("pierhead_Cache", "gauge"),
        ("cache_hits", "counter"),
        ("pierhead_answer_ms", "histogram"),
        ("pierhead_hits_total", "counter"),
        ("pierhead_bytes_sent", "counter"),
        ("pierhead_limit_bandwidth_bytes", "gauge"),
    ] {
        assert!(!faults_of_name(name, kind).is_empty(), "{name}");
    }
    for line in [
        "pierhead_requests_total{endpoint=\"Blob\"} 1",
        "pierhead_requests_total{Endpoint=\"blob\"} 1",
        "pierhead_requests_total{class=\"2\"} 1",
        "pierhead_requests_total{endpoint=\"blob\",status=\"200\"} 1",
    ] {
        assert!(!faults_of_labels(&Sample::parse(line)).is_empty(), "{line}");
    }
}

#[tokio::test]
async fn every_metric_follows_the_naming_rules() {
    let registry = FakeRegistry::start().await;
    let image = Image::random(1, &[70_000]);
    registry.push("app", "1", &image);
    registry.configure(|settings| {
        settings.rate_limit = Some(RateLimit {
            limit: 100,
            remaining: 100,
            window: 60,
        });
    });
    // With a fast tier in memory, the daemon has additional metrics.
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let config = format!(
        "default_upstream = \"reg.example\"\n\
         [upstreams.\"reg.example\"]\naddresses = {:?}\n\
         [request_log]\nfile = {:?}\n\
         [tier]\nkind = \"file\"\npath = {:?}\nsize = \"32MiB\"\n",
        registry.url(),
        folder.path().join("trace"),
        folder.path().join("tier"),
    );
    let daemon = Daemon::start(&config, &[]).await;
    let blob = format!("/v2/app/blobs/{}", image.blobs[1].digest);
    for path in [
        "/v2/",
        "/v2/app/manifests/1",
        "/v2/app/manifests/none",
        &blob,
        &blob,
        "/none",
    ] {
        let request = Request::get(path);
        let answer = soon("an answer", request.send(daemon.listen)).await;
        answer.expect("one");
    }
    let metrics = daemon.get("/metrics").await;
    let text = String::from_utf8(metrics.body.to_vec()).expect("UTF-8");
    let mut faults = Vec::new();
    let mut families = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut helped = BTreeSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            helped.insert(name);
            if help.len() < 5 {
                faults.push(format!("{name} has no help"));
            }
        } else if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').expect("a name and a type");
            let found = faults_of_name(name, kind);
            faults.extend(found.iter().map(|fault| format!("{name} {fault}")));
            if !families.insert(name) {
                faults.push(format!("{name} is registered twice"));
            }
        } else if !line.starts_with('#') {
            let sample = Sample::parse(line);
            names.insert(sample.name);
            let found = faults_of_labels(&sample);
            faults.extend(
                found
                    .iter()
                    .map(|fault| format!("{}: {fault}", sample.name)),
            );
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(families, helped);
    is_on_the_page(&text);
    assert_eq!(promtool(&text), None);
    for prefix in [
        "cache_tier",
        "request_log",
        "bundle",
        "pressure",
        "remote",
        "limit",
    ] {
        let prefix = format!("pierhead_{prefix}");
        let is_there = names.iter().any(|name| name.starts_with(&prefix));
        assert!(is_there, "nothing of {prefix} was looked at: {names:?}");
    }
    // The metrics of the process have the names that the client libraries of Prometheus use.
    for name in [
        "process_cpu_seconds_total",
        "process_max_fds",
        "process_open_fds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_threads",
        "process_virtual_memory_bytes",
    ] {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|line| line.trim().parse::<f64>().ok());
        let is_plain = name == "process_cpu_seconds_total";
        assert!(
            value.is_some_and(|value| value > 0.0 || is_plain),
            "{name}: {value:?}"
        );
    }
    let started = |text: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("process_start_time_seconds "));
        line.expect("the metric exists").to_owned()
    };
    let again = daemon.get("/metrics").await;
    assert_eq!(
        started(&text),
        started(&String::from_utf8_lossy(&again.body))
    );
    // The first request is a miss. The second request is a miss, too, if it arrives before the blob
    // is committed.
    let line = "pierhead_proxy_requests_total{endpoint=\"blob\",cache=\"miss\",status=\"2xx\"} ";
    let misses = text.lines().find_map(|it| it.strip_prefix(line));
    assert!(
        misses.is_some_and(|it| it == "1" || it == "2"),
        "{misses:?}"
    );
}
