//! Checks the Helm charts in `bluefield/` without a cluster: lints the charts, renders the charts
//! with many values, validates the rendered manifests against schemas, and checks the rendered
//! configurations of pierhead.

mod alerts;
mod compose;
mod configs;
mod configuration;
mod expected_output;
mod matrix;
mod metrics;
mod names;
mod profiles;
mod readme;
mod schema;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    check::{programs, test_count::TestCount},
    console::say,
    exec, install, paths,
};

/// Flags of `cargo xtask chart`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write the generated files, instead of checking them.
    #[arg(long)]
    write: bool,
}

/// Writes the generated files (READMEs, schemas, profiles), or checks that they are current.
///
/// # Errors
/// A file is not current, or cannot be generated.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut old = Vec::new();
    for (path, text) in generated_files()? {
        if fs::read_to_string(&path).is_ok_and(|it| it == text) {
            continue;
        }
        if options.write {
            println!("{}", path.display());
            fs::write(&path, text)?;
        } else {
            old.push(path.display().to_string());
        }
    }
    if !old.is_empty() {
        bail!(
            "not current: {}; run `cargo xtask chart --write`",
            old.join(", ")
        );
    }
    Ok(())
}

/// Paths of the generated files, each with its current text.
fn generated_files() -> Result<Vec<(PathBuf, String)>> {
    let mut made = Vec::new();
    for chart in CHARTS {
        let folder = paths::root().join("bluefield").join(chart);
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let text = readme::of(&read("README.head.md")?, &read("values.yaml")?)?;
        made.push((folder.join("README.md"), text));
        let path = folder.join("values.schema.json");
        let mut schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
        if let Some(config) = schema["properties"].get_mut("config") {
            let all = paths::root().join("docs/reference/configuration.schema.json");
            *config = configuration::schema(&serde_json::from_str(&fs::read_to_string(all)?)?)?;
        }
        made.push((path, format!("{schema:#}\n")));
    }
    let bluefield = paths::root().join("bluefield");
    made.push((
        bluefield.join("chart/templates/_profiles.tpl"),
        profiles::template(),
    ));
    let sizing = paths::root().join("docs/explanation/dpu-sizing.md");
    let page = fs::read_to_string(&sizing)?;
    made.push((sizing, profiles::page(&page)?));
    Ok(made)
}

/// Version of Kubernetes for which helm renders. Without this version, helm would use the version
/// that helm was built with, which is very old after `go install`.
const VERSION: &str = "1.34";
/// Folders of the charts below `bluefield/`.
const CHARTS: &[&str] = &["chart", "chart-host"];
/// Name of the rendered release. The schema check requires it in the name of every object.
const RELEASE: &str = "rel";

/// Checks all charts, and the rendered configurations with the program `daemon`.
///
/// # Errors
/// helm or Python cannot be started. An error in a chart is a failed test.
pub(crate) fn check(helm: &Path, promtool: &Path, daemon: &Path) -> Result<TestCount> {
    let mut count = TestCount::default();
    count.note("made from others", run(&Options { write: false }));
    let manifests = tempfile::tempdir()?;
    for chart in CHARTS {
        let chart = Chart::open(helm, chart)?;
        let case = chart.cases()?.into_iter().next().unwrap_or_default();
        chart.lint(&case, &mut count);
        count.note(&format!("{}::metrics", chart.name), chart.metrics());
        count.note(&format!("{}::schema", chart.name), chart.schema());
        for values in paths::files(&chart.folder.join("ci/refused"), "yaml")? {
            chart.refuses(&values, daemon, &mut count)?;
        }
        expected_output::check(&chart, &mut count)?;
        count.note(&format!("{}::page", chart.name), chart.on_page());
    }
    render(helm, manifests.path(), &mut count)?;
    configs::check(daemon, manifests.path(), &mut count)?;
    let schema = paths::root().join("bluefield/chart/values.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(schema)?)?;
    names::check(daemon, &schema["properties"]["config"], &mut count)?;
    say!("  {} passed, {} failed: helm", count.passed, count.failed);
    for sample in paths::files(&paths::root().join("bluefield/dpf"), "yaml")? {
        let stem = sample.file_stem().unwrap_or_default().to_string_lossy();
        fs::copy(&sample, manifests.path().join(format!("-.dpf-{stem}.yaml")))?;
    }
    count.note("systemd", unit(manifests.path()));
    let python = paths::tools().join(install::SCHEMAS.0).join("bin/python");
    compose::check(daemon, &python, &mut count)?;
    let chart = Chart::open(helm, CHARTS[0])?;
    alerts::check(&chart, &python, promtool, &mut count)?;
    chart.of_dpf(&python, manifests.path(), &mut count)?;
    let schemas = programs::count(
        Command::new(&python)
            .arg(paths::root().join("xtask/src/chart/validate.py"))
            .arg(VERSION)
            .arg(paths::root().join("bluefield/schemas"))
            .arg(manifests.path()),
    )?;
    say!(
        "  {} passed, {} failed: schemas of Kubernetes {VERSION}",
        schemas.passed,
        schemas.failed
    );
    count += &schemas;
    Ok(count)
}

/// Renders every combination of test values, each into a file in the folder `into`.
///
/// # Errors
/// A file cannot be written. An error of helm is a failed test.
pub(crate) fn render(helm: &Path, into: &Path, count: &mut TestCount) -> Result<()> {
    for chart in CHARTS {
        let chart = Chart::open(helm, chart)?;
        for case in chart.cases()? {
            chart.render(&case, into, count)?;
        }
    }
    Ok(())
}

struct Chart<'a> {
    helm: &'a Path,
    name: &'a str,
    folder: PathBuf,
}

impl<'a> Chart<'a> {
    fn open(helm: &'a Path, name: &'a str) -> Result<Self> {
        let folder = paths::root().join("bluefield").join(name);
        if !folder.join("Chart.yaml").exists() {
            bail!("{} is no chart", folder.display());
        }
        Ok(Self { helm, name, folder })
    }

    /// Combinations of values: one file `ci/AXIS-CASE.yaml` of each axis.
    fn cases(&self) -> Result<Vec<Vec<PathBuf>>> {
        Ok(matrix::cover(&paths::files(
            &self.folder.join("ci"),
            "yaml",
        )?))
    }

    /// Runs `helm lint` with one combination of values, because a chart may have required values.
    fn lint(&self, case: &[PathBuf], count: &mut TestCount) {
        let mut lint = Command::new(self.helm);
        lint.args(["lint", "--strict", "--quiet", "--kube-version", VERSION])
            .arg(&self.folder);
        for file in self.common().iter().chain(case) {
            lint.arg("--values").arg(file);
        }
        let linted = exec::output(&mut lint);
        count.note(&format!("{}::lint", self.name), linted.map(drop));
    }

    /// Checks that values.yaml and values.schema.json have the same keys.
    fn schema(&self) -> Result<()> {
        let read = |name: &str| fs::read_to_string(self.folder.join(name));
        let keys = readme::keys(&read("values.yaml")?)?;
        let schema = serde_json::from_str(&read("values.schema.json")?)?;
        let wrong = schema::differences(&keys, &schema);
        if !wrong.is_empty() {
            bail!(wrong.join("; "));
        }
        Ok(())
    }

    /// Checks that alert rules and dashboard use only metrics that exist.
    fn metrics(&self) -> Result<()> {
        let crates = paths::root().join("crates");
        for name in ["templates/prometheusrule.yaml", "files/dashboard.json"] {
            let Ok(text) = fs::read_to_string(self.folder.join(name)) else {
                continue;
            };
            if name.ends_with(".json") {
                serde_json::from_str::<Value>(&text).context(name)?;
            }
            let unknown = metrics::unknown(&text, &crates)?;
            if !unknown.is_empty() {
                bail!("{name}: nothing registers {}", unknown.join(", "));
            }
        }
        Ok(())
    }

    /// Checks that `docs/how-to/kubernetes.md` shows the tested values for every node.
    fn on_page(&self) -> Result<()> {
        let values = fs::read_to_string(self.folder.join("ci/expected-output/every-node.yaml"))?;
        let lines = values.lines().filter(|line| !line.starts_with('#'));
        let block = lines.fold(String::from("```yaml\n"), |block, line| block + line + "\n");
        let page = fs::read_to_string(paths::root().join("docs/how-to/kubernetes.md"))?;
        if !page.contains(&(block + "```\n")) {
            bail!(
                "docs/how-to/kubernetes.md shows other values than ci/expected-output/every-node.yaml"
            );
        }
        Ok(())
    }

    fn template(&self, values: &[PathBuf]) -> Command {
        let mut command = Command::new(self.helm);
        command
            .args(["template", RELEASE, "--namespace", "default"])
            .args(["--kube-version", VERSION])
            .arg(&self.folder);
        for file in self.common().iter().chain(values) {
            command.arg("--values").arg(file);
        }
        command
    }

    /// Values that every test of the chart needs.
    fn common(&self) -> Vec<PathBuf> {
        paths::files(&self.folder.join("ci/common"), "yaml").unwrap_or_default()
    }

    /// Renders one combination of values into the folder of manifests, which are validated later.
    fn render(&self, case: &[PathBuf], into: &Path, count: &mut TestCount) -> Result<()> {
        let stems = case.iter().filter_map(|file| file.file_stem());
        let stems: Vec<_> = stems.map(|stem| stem.to_string_lossy()).collect();
        let case_name = format!("{}+{}", self.name, stems.join("+"));
        let rendered = exec::output(&mut self.template(case));
        if let Ok(text) = &rendered {
            fs::write(into.join(format!("{RELEASE}.{case_name}.yaml")), text)?;
        }
        count.note(&format!("render::{case_name}"), rendered.map(drop));
        Ok(())
    }

    /// Renders the chart with the values of the DPF samples, as DPF would, into the folder of
    /// manifests.
    fn of_dpf(&self, python: &Path, into: &Path, count: &mut TestCount) -> Result<()> {
        let values = tempfile::tempdir()?;
        exec::output(
            Command::new(python)
                .arg(paths::root().join("xtask/src/chart/samples.py"))
                .arg(paths::root().join("bluefield/dpf"))
                .arg(values.path()),
        )?;
        let samples = paths::files(values.path(), "json")?;
        if samples.is_empty() {
            bail!("no sample for DPF has values");
        }
        for sample in samples {
            self.render(&[sample], into, count)?;
        }
        Ok(())
    }

    /// Checks a file of invalid values. Each document begins with a part of the expected error: of
    /// helm (`# fails: `), or of `pierhead config check` in the init container (`# config check:
    /// `).
    fn refuses(&self, bad: &Path, daemon: &Path, count: &mut TestCount) -> Result<()> {
        let text = fs::read_to_string(bad)?;
        let name = bad.file_stem().unwrap_or_default().to_string_lossy();
        for values in text.split("\n---\n") {
            let wanted = |mark: &str| {
                let mut lines = values.lines().take_while(|line| line.starts_with('#'));
                lines.find_map(|line| line.strip_prefix(mark))
            };
            let by_pierhead = wanted("# config check: ");
            let wanted = by_pierhead
                .or_else(|| wanted("# fails: "))
                .with_context(|| format!("{} says not what fails", bad.display()))?;
            let mut file = tempfile::NamedTempFile::new()?;
            file.write_all(values.as_bytes())?;
            let rendered = exec::output(&mut self.template(&[file.path().to_owned()]));
            let refused = match rendered {
                Ok(manifest) if by_pierhead.is_some() => {
                    configs::refuses(daemon, &String::from_utf8_lossy(&manifest), wanted)
                }
                Ok(_) => Err(anyhow::anyhow!("helm takes these values")),
                Err(error) if format!("{error:#}").contains(wanted) => Ok(()),
                Err(error) => Err(error.context(format!("helm does not say {wanted:?}"))),
            };
            let what = format!("{}::refuses::{name}::{wanted}", self.name);
            count.note(&what, refused);
        }
        Ok(())
    }
}

/// Runs systemd-analyze on the unit, with an existing program in place of pierhead.
fn unit(scratch: &Path) -> Result<()> {
    let analyze = paths::find("systemd-analyze").context("no systemd-analyze")?;
    let unit = fs::read_to_string(paths::root().join("bluefield/systemd/pierhead.service"))?;
    let path = scratch.join("pierhead.service");
    fs::write(&path, unit.replace("/usr/bin/pierhead", "/bin/true"))?;
    let verified = Command::new(&analyze)
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()?;
    let said = String::from_utf8_lossy(&verified.stderr);
    // systemd-analyze also reports errors of other units on this machine.
    let ours: Vec<_> = said.lines().filter(|it| it.contains("pierhead")).collect();
    if !ours.is_empty() {
        bail!(ours.join("; "));
    }
    exec::output(
        Command::new(&analyze)
            // The unit of the threshold is a tenth: 20 means an exposure level of 2.0, which
            // systemd calls OK.
            .args(["security", "--offline=yes", "--threshold=20"])
            .arg(&path),
    )
    .map(drop)
}
