//! The metric `pierhead_task_panics_total`: panics of background tasks, by task, collected at each
//! scrape.

use std::fmt;

use pierhead_host::{BackgroundTask, Panics};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// Collects the panics of each task at each scrape.
#[derive(Debug)]
pub(super) struct TaskPanics(pub(super) Panics);

impl Collector for TaskPanics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let panics = Family::<[(&str, &str); 1], Counter>::default();
        // Each task has a time series from the start, because `rate()` in Prometheus ignores the
        // first value of a new series.
        for task in BackgroundTask::ALL {
            drop(panics.get_or_create(&[("task", task.name())]));
        }
        for (task, count) in self.0.counts() {
            panics.get_or_create(&[("task", task.name())]).inc_by(count);
        }
        let encoder = encoder.encode_descriptor(
            "pierhead_task_panics",
            "Panics of background tasks; each is a bug in pierhead",
            None,
            panics.metric_type(),
        )?;
        panics.encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use pierhead_testkit::metrics::metrics_text;

    use super::*;

    #[test]
    fn each_task_has_a_series_with_its_number_of_panics() {
        let panics = Panics::default();
        for _ in 0..2 {
            panics.note(BackgroundTask::CacheMaintenance, &"deliberate panic");
        }
        let task_panics = Box::new(TaskPanics(panics.clone()));
        let text = metrics_text(|registry| registry.register_collector(task_panics));
        for line in [
            r#"pierhead_task_panics_total{task="cache-maintenance"} 2"#,
            r#"pierhead_task_panics_total{task="tag-writer"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    /// Checks that the sources use every task of the metric: a task that no code runs would have a
    /// series that is always 0.
    #[test]
    fn the_code_runs_each_task() {
        fn read(folder: &Path, text: &mut String) {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    read(&path, text);
                } else if path.extension().is_some_and(|it| it == "rs") {
                    let file = fs::read_to_string(&path).expect("a source file");
                    text.push_str(file.split("#[cfg(test)]").next().unwrap_or_default());
                }
            }
        }
        let mut text = String::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for entry in fs::read_dir(crates).expect("the crates") {
            let folder = entry.expect("a crate").path();
            if folder.file_name().is_some_and(|name| name != "host") && folder.is_dir() {
                read(&folder.join("src"), &mut text);
            }
        }
        for task in BackgroundTask::ALL {
            assert!(
                text.contains(&format!("BackgroundTask::{task:?}")),
                "{task}"
            );
        }
    }
}
