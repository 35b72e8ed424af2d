//! Checks the alert rules and dashboards of a rendered chart with promtool: their syntax, and the
//! test series at which alerts fire.

use std::{fs, path::Path, process::Command};

use anyhow::Result;

use super::Chart;
use crate::{check::test_count::TestCount, exec, paths};

/// Lets promtool check the rules and the dashboard, and run the tests of the alerts.
///
/// # Errors
/// The chart cannot be rendered. An error of promtool is a failed test.
pub(super) fn check(
    chart: &Chart<'_>,
    python: &Path,
    promtool: &Path,
    count: &mut TestCount,
) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let values = folder.path().join("values.yaml");
    fs::write(&values, "metrics: {rules: {enabled: true}}\n")?;
    let manifest = folder.path().join("manifest.yaml");
    fs::write(&manifest, exec::output(&mut chart.template(&[values]))?)?;
    let made = exec::output(
        Command::new(python)
            .arg(paths::root().join("xtask/src/chart/alerts.py"))
            .arg(&manifest)
            .arg(chart.folder.join("files/dashboard.json"))
            .arg(chart.folder.join("ci/alerts/tests.yaml"))
            .arg(folder.path()),
    );
    let is_made = made.is_ok();
    count.note("alerts::each is tested", made.map(drop));
    if !is_made {
        return Ok(());
    }
    let ask = |words: [&str; 3]| {
        let mut command = Command::new(promtool);
        exec::output(command.current_dir(folder.path()).args(words)).map(drop)
    };
    count.note("alerts::rules", ask(["check", "rules", "rules.yaml"]));
    count.note(
        "alerts::dashboard",
        ask(["check", "rules", "dashboard.yaml"]),
    );
    count.note(
        "alerts::what they fire at",
        ask(["test", "rules", "tests.yaml"]),
    );
    Ok(())
}
