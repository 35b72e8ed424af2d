//! Metric of background task panics, collected at each scrape.

use std::fmt;

use pierhead_host::Panics;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// The background tasks, whose code is in several crates. Each has a series before its first panic, else no rate sees
/// that panic.
const TASKS: [&str; 20] = [
    "admin-connection",
    "admin-listener",
    "bundle-arrival",
    "bundle-library",
    "bundle-pull",
    "cache-fill",
    "cache-upkeep",
    "cache-verify",
    "cache-warm",
    "connection",
    "fill-owner",
    "hot-ranges",
    "interface-watch",
    "login",
    "pressure-watch",
    "request-trace",
    "shared-request",
    "stored-images",
    "tag-writer",
    "tier-write-back",
];

/// For `GET /metrics`.
#[derive(Debug)]
pub(super) struct TaskPanics(pub(super) Panics);

impl Collector for TaskPanics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let panics = Family::<[(&str, &str); 1], Counter>::default();
        for task in TASKS {
            drop(panics.get_or_create(&[("task", task)]));
        }
        for (task, count) in self.0.counts() {
            panics.get_or_create(&[("task", task)]).inc_by(count);
        }
        let encoder = encoder.encode_descriptor(
            "pierhead_task_panics",
            "Panics of background tasks, each of which is a fault of pierhead",
            None,
            panics.metric_type(),
        )?;
        panics.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn each_task_has_its_count() {
        let panics = Panics::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(TaskPanics(panics.clone())));
        for _ in 0..2 {
            panics.note("cache-upkeep", &"by intent");
        }
        let mut text = String::new();
        assert_eq!(encode(&mut text, &registry), Ok(()));
        for line in [
            r#"pierhead_task_panics_total{task="cache-upkeep"} 2"#,
            r#"pierhead_task_panics_total{task="tag-writer"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    /// The code of each task names it: by a constant, or in the call that counts its panics.
    #[test]
    fn each_task_of_the_code_is_listed() {
        fn read(folder: &Path, text: &mut String) {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    read(&path, text);
                } else if path.extension().is_some_and(|it| it == "rs") {
                    let file = fs::read_to_string(&path).expect("a source file");
                    // What follows are tests, whose tasks have other names.
                    text.push_str(file.split("#[cfg(test)]").next().unwrap_or_default());
                }
            }
        }
        let mut text = String::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in ["bundle", "cache", "pierhead", "proxy"] {
            read(&crates.join(name).join("src"), &mut text);
        }
        let mut found = BTreeSet::new();
        for start in [
            "const TASK: &str = \"",
            "const PRESSURE: &str = \"",
            "panics.watch(\"",
            "panics().watch(\"",
            "panics.catch(\"",
            "panics().catch(\"",
            "behind.spawn(\"",
        ] {
            let calls = text.split(start).skip(1);
            found.extend(calls.filter_map(|rest| rest.split('"').next()));
        }
        assert_eq!(found, TASKS.into());
    }
}
