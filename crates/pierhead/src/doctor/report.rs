//! What was found: a line each, and the fix below where there is one.

use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;

use crate::clock;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warn,
    /// Pulls fail, or do not go through pierhead as they are meant to.
    Fail,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was looked at, such as `disk` or `upstream docker.io`.
    pub(crate) about: String,
    pub(crate) level: Level,
    pub(crate) what: String,
    /// A command to run or a key to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
    /// The clock is years off, which makes whatever else fails.
    #[serde(skip)]
    pub(crate) is_clock: bool,
}

impl Finding {
    pub(crate) fn ok(about: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            about: about.into(),
            level: Level::Ok,
            what: what.into(),
            fix: None,
            is_clock: false,
        }
    }

    /// A failure that a wrong clock explains.
    pub(crate) fn clock(about: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            is_clock: true,
            ..Self::fail(about, what, clock::FIX)
        }
    }

    pub(crate) fn warn(
        about: impl Into<String>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Warn,
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
            level: Level::Fail,
            ..Self::warn(about, what, fix)
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'a str,
    level: Level,
    findings: &'a [Finding],
}

/// The worst of all.
pub(crate) fn worst(findings: &[Finding]) -> Level {
    let levels = findings.iter().map(|finding| finding.level);
    levels.max().unwrap_or(Level::Ok)
}

/// Prints them.
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
        .filter(|finding| finding.level != Level::Ok || !crate::quiet::is_set())
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
        let (word, colour) = match finding.level {
            Level::Ok => ("ok  ", "32"),
            Level::Warn => ("warn", "33"),
            Level::Fail => ("FAIL", "31"),
        };
        let word = if colours {
            format!("\u{1b}[{colour}m{word}\u{1b}[0m")
        } else {
            word.to_owned()
        };
        // What comes from outside may hold anything: no line or colour of its own.
        let one_line = |text: &str| text.replace(char::is_control, " ");
        let (about, what) = (&finding.about, one_line(&finding.what));
        text.push_str(&format!("{word}  {about:widest$}  {what}\n"));
        if let Some(fix) = &finding.fix {
            let fix = one_line(fix);
            text.push_str(&format!("      {:widest$}  -> {fix}\n", ""));
        }
    }
    let count = |level| findings.iter().filter(|it| it.level == level).count();
    text.push_str(&format!(
        "\n{} ok, {} to look at, {} failed\n",
        count(Level::Ok),
        count(Level::Warn),
        count(Level::Fail)
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_each_and_the_mend_below() {
        let findings = [
            Finding::ok("disk", "500 MB/s"),
            Finding::fail("upstream a.b", "no\nanswer \u{1b}[2J", "do it"),
        ];
        assert_eq!(
            text(&findings, false),
            "ok    disk          500 MB/s\nFAIL  upstream a.b  no answer  [2J\n                    -> do it\n\n1 ok, 0 to look at, 1 failed\n"
        );
        assert!(text(&findings, true).contains("\u{1b}[31mFAIL"));
        assert_eq!(worst(&findings), Level::Fail);
        assert_eq!(worst(&[]), Level::Ok);
    }
}
