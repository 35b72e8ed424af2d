//! The charts of `bluefield/`: linted, rendered with many values, and held against schemas without a cluster.

mod matrix;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    check::{count::Count, programs},
    exec, install, place,
};

/// Of Kubernetes. Without it helm takes what it was built with, which for `go install` is a very old one.
const VERSION: &str = "1.34";
/// Charts below `bluefield/`.
const CHARTS: &[&str] = &["chart"];
/// Its name is in that of every object, or the schemas' peer says so.
const RELEASE: &str = "rel";

/// Checks all charts.
///
/// # Errors
/// When helm or Python cannot be started; what is wrong with a chart is a failed test.
pub(crate) fn check(helm: &Path) -> Result<Count> {
    let mut count = Count::default();
    let manifests = tempfile::tempdir()?;
    for chart in CHARTS {
        let chart = Chart::open(helm, chart)?;
        chart.lint(&mut count);
        for case in matrix::cover(&chart.fragments()?) {
            chart.render(&case, manifests.path(), &mut count)?;
        }
        for bad in files(&chart.folder.join("ci/bad"))? {
            chart.refuses(&bad, &mut count)?;
        }
    }
    println!("  {} passed, {} failed: helm", count.passed, count.failed);
    let python = place::tools().join(install::SCHEMAS.0).join("bin/python");
    let schemas = programs::count(
        Command::new(python)
            .arg(place::root().join("xtask/src/chart/validate.py"))
            .arg(VERSION)
            .arg(place::root().join("bluefield/schemas"))
            .arg(manifests.path()),
    )?;
    println!(
        "  {} passed, {} failed: schemas of Kubernetes {VERSION}",
        schemas.passed, schemas.failed
    );
    count += &schemas;
    Ok(count)
}

struct Chart<'a> {
    helm: &'a Path,
    name: &'a str,
    folder: PathBuf,
}

impl<'a> Chart<'a> {
    fn open(helm: &'a Path, name: &'a str) -> Result<Self> {
        let folder = place::root().join("bluefield").join(name);
        if !folder.join("Chart.yaml").exists() {
            bail!("{} is no chart", folder.display());
        }
        Ok(Self { helm, name, folder })
    }

    /// Values to combine: `ci/AXIS-VALUE.yaml`.
    fn fragments(&self) -> Result<Vec<PathBuf>> {
        files(&self.folder.join("ci"))
    }

    fn lint(&self, count: &mut Count) {
        let linted = exec::output(
            Command::new(self.helm)
                .args(["lint", "--strict", "--quiet", "--kube-version", VERSION])
                .arg(&self.folder),
        );
        note(count, &format!("{}::lint", self.name), linted.map(drop));
    }

    fn template(&self, values: &[PathBuf]) -> Command {
        let mut command = Command::new(self.helm);
        command
            .args(["template", RELEASE, "--namespace", "default"])
            .args(["--kube-version", VERSION])
            .arg(&self.folder);
        for file in values {
            command.arg("--values").arg(file);
        }
        command
    }

    /// Renders one combination into the folder that the schemas are held against.
    fn render(&self, case: &[PathBuf], into: &Path, count: &mut Count) -> Result<()> {
        let stems = case.iter().filter_map(|file| file.file_stem());
        let stems: Vec<_> = stems.map(|stem| stem.to_string_lossy()).collect();
        let case_name = format!("{}+{}", self.name, stems.join("+"));
        let rendered = exec::output(&mut self.template(case));
        if let Ok(text) = &rendered {
            fs::write(into.join(format!("{RELEASE}.{case_name}.yaml")), text)?;
        }
        note(count, &format!("render::{case_name}"), rendered.map(drop));
        Ok(())
    }

    /// The first line of a file of bad values says what helm must answer: the key that is wrong.
    fn refuses(&self, bad: &PathBuf, count: &mut Count) -> Result<()> {
        let text = fs::read_to_string(bad)?;
        let wanted = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# fails: "))
            .with_context(|| format!("{} does not begin with `# fails: `", bad.display()))?;
        let name = bad.file_stem().unwrap_or_default().to_string_lossy();
        let refused = match exec::output(&mut self.template(std::slice::from_ref(bad))) {
            Ok(_) => Err(anyhow::anyhow!("helm takes these values")),
            Err(error) if format!("{error:#}").contains(wanted) => Ok(()),
            Err(error) => Err(error.context(format!("helm does not say {wanted:?}"))),
        };
        note(count, &format!("{}::refuses::{name}", self.name), refused);
        Ok(())
    }
}

/// Counts one check, and tells what failed.
fn note(count: &mut Count, name: &str, outcome: Result<()>) {
    count.ended = true;
    match outcome {
        Ok(()) => count.passed += 1,
        Err(error) => {
            println!("  {name}: {error:#}");
            count.failed += 1;
            count.failures.push(name.to_owned());
        }
    }
}

/// The YAML files of a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
