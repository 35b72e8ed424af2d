//! Renders a chart with the values of each file in `ci/expected-output`, and checks the lines that
//! the output must or must not contain.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::Chart;
use crate::{check::test_count::TestCount, exec, paths};

/// A template that renders NOTES.txt as a ConfigMap, because `helm template` does not print the
/// notes.
const NOTES: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  text: |\n    {{- tpl (.Files.Get \"NOTES.txt\") . | nindent 4 }}\n";

/// Renders the values of each `ci/expected-output/*.yaml`, and checks the output against the
/// comments at the beginning of the file.
///
/// # Errors
/// The chart cannot be copied. Unexpected output is a failed test.
#[expect(
    clippy::disallowed_methods,
    reason = "a build artifact, which the next run makes again after a crash"
)]
pub(super) fn check(chart: &Chart<'_>, count: &mut TestCount) -> Result<()> {
    let copied = tempfile::tempdir()?;
    let copy = Chart {
        folder: copied.path().join(chart.name),
        ..*chart
    };
    exec::output(
        Command::new("cp")
            .arg("-r")
            .arg(&chart.folder)
            .arg(&copy.folder),
    )?;
    let templates = copy.folder.join("templates");
    fs::rename(templates.join("NOTES.txt"), copy.folder.join("NOTES.txt"))?;
    fs::write(templates.join("notes.yaml"), NOTES)?;
    for file in paths::files(&chart.folder.join("ci/expected-output"), "yaml")? {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        count.note(
            &format!("{}::expected-output::{name}", chart.name),
            check_file(&copy, &file).with_context(|| file.display().to_string()),
        );
    }
    Ok(())
}

fn check_file(chart: &Chart<'_>, file: &Path) -> Result<()> {
    let wanted = ExpectedTexts::of(&fs::read_to_string(file)?)?;
    let rendered = exec::output(&mut chart.template(&[PathBuf::from(file)]))?;
    wanted.of_rendered(&String::from_utf8_lossy(&rendered))
}

/// The expected output, from the comments at the beginning of a file of values. ` / ` stands for a
/// line break. Indents are ignored.
#[derive(Debug, PartialEq)]
struct ExpectedTexts {
    has: Vec<String>,
    lacks: Vec<String>,
}

impl ExpectedTexts {
    fn of(values: &str) -> Result<Self> {
        let mut it = Self {
            has: Vec::new(),
            lacks: Vec::new(),
        };
        for line in values.lines().take_while(|line| line.starts_with('#')) {
            let lines = |text: &str| text.replace(" / ", "\n");
            match line.split_once(": ") {
                Some(("# has", text)) => it.has.push(lines(text)),
                Some(("# lacks", text)) => it.lacks.push(lines(text)),
                _ => {}
            }
        }
        if it.has.is_empty() && it.lacks.is_empty() {
            bail!("it does not begin with `# has: ` or `# lacks: `");
        }
        Ok(it)
    }

    fn of_rendered(&self, rendered: &str) -> Result<()> {
        let lines: Vec<_> = rendered.lines().map(str::trim).collect();
        let text = lines.join("\n");
        if let Some(missing) = self.has.iter().find(|it| !text.contains(*it)) {
            bail!("it lacks {missing:?}");
        }
        if let Some(found) = self.lacks.iter().find(|it| text.contains(*it)) {
            bail!("it has {found:?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_whatever_their_indent() {
        let wanted =
            ExpectedTexts::of("# Why.\n# has: limits: / memory: 2Gi\n# lacks: cpu\na: 1\n# has: x");
        let wanted = wanted.expect("lines");
        assert_eq!(wanted.has, ["limits:\nmemory: 2Gi"]);
        wanted
            .of_rendered("    limits:\n      memory: 2Gi\n")
            .expect("it has them");
        for wrong in [
            "limits:\n  cpu: 1\n  memory: 2Gi",
            "limits:\nmemory: 2Gi\ncpu: 1",
        ] {
            assert!(wanted.of_rendered(wrong).is_err(), "{wrong}");
        }
        assert!(ExpectedTexts::of("# Why.\na: 1\n").is_err());
    }
}
