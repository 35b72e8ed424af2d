//! The report of `pierhead doctor`: one line per finding, with its fix below.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use crate::serve::clock_check;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// No problem was found.
    Ok,
    /// pierhead works, but slowly, incompletely, or not for much longer.
    Warn,
    /// Pulls fail, or bypass pierhead.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Subject of the check, such as `disk` or `upstream docker.io`.
    pub(crate) about: String,
    pub(crate) level: Severity,
    pub(crate) what: String,
    /// The fix: a command to run, or a key to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
    /// Whether the cause is a clock that is years off. doctor then exits with a special code.
    #[serde(skip)]
    pub(crate) is_clock_error: bool,
}

impl Finding {
    pub(crate) fn ok(about: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            about: about.into(),
            level: Severity::Ok,
            what: what.into(),
            fix: None,
            is_clock_error: false,
        }
    }

    /// Creates a failure whose cause is a wrong clock.
    pub(crate) fn clock_error(about: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            is_clock_error: true,
            ..Self::fail(about, what, clock_check::FIX)
        }
    }

    pub(crate) fn warn(
        about: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            level: Severity::Warn,
            fix: Some(fix.into()),
            ..Self::ok(about, what)
        }
    }

    pub(crate) fn fail(
        about: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            level: Severity::Fail,
            ..Self::warn(about, what, fix)
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'a str,
    level: Severity,
    findings: &'a [Finding],
}

/// Returns the highest severity of all findings.
pub(crate) fn worst(findings: &[Finding]) -> Severity {
    let levels = findings.iter().map(|finding| finding.level);
    levels.max().unwrap_or(Severity::Ok)
}

/// Prints the findings, as text, or as one JSON document.
pub(crate) fn print(findings: &[Finding], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            level: worst(findings),
            findings,
        };
        serde_json::to_writer_pretty(&mut out, &document)?;
        return out.write_all(b"\n");
    }
    let shown: Vec<_> = findings
        .iter()
        .filter(|finding| finding.level != Severity::Ok || !crate::cli::verbosity::is_quiet())
        .cloned()
        .collect();
    let text = text(&shown, io::stdout().is_terminal());
    out.write_all(text.as_bytes())
}

fn text(findings: &[Finding], colours: bool) -> String {
    let widest = findings
        .iter()
        .map(|it| it.about.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let (label, colour) = match finding.level {
            Severity::Ok => ("ok  ", "32"),
            Severity::Warn => ("warn", "33"),
            Severity::Fail => ("FAIL", "31"),
        };
        let label = if colours {
            format!("\u{1b}[{colour}m{label}\u{1b}[0m")
        } else {
            label.to_owned()
        };
        // The text of a finding may contain data of clients or registries. Such data must not add
        // lines or control the terminal.
        let one_line = |text: &str| text.replace(char::is_control, " ");
        let (about, what) = (&finding.about, one_line(&finding.what));
        text.push_str(&format!("{label}  {about:widest$}  {what}\n"));
        if let Some(fix) = &finding.fix {
            let fix = one_line(fix);
            text.push_str(&format!("      {:widest$}  -> {fix}\n", ""));
        }
    }
    let count = |level| findings.iter().filter(|it| it.level == level).count();
    text.push_str(&format!(
        "\n{} ok, {} warnings, {} failed\n",
        count(Severity::Ok),
        count(Severity::Warn),
        count(Severity::Fail)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_one_line_with_its_fix_below() {
        let findings = [
            Finding::ok("disk", "500 MB/s"),
            Finding::fail("upstream a.b", "no\nanswer \u{1b}[2J", "do it"),
        ];
        assert_eq!(
            text(&findings, false),
            "ok    disk          500 MB/s\nFAIL  upstream a.b  no answer  [2J\n                    -> do it\n\n1 ok, 0 warnings, 1 failed\n"
        );
        assert!(text(&findings, true).contains("\u{1b}[31mFAIL"));
        assert_eq!(worst(&findings), Severity::Fail);
        assert_eq!(worst(&[]), Severity::Ok);
    }
}
