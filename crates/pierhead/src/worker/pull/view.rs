//! What a user sees of a pull: a bar while it runs, lines or one JSON object at its end.

use std::io::Write as _;
use std::time::Duration;

use pierhead_oci::units::human_bytes;
use serde::Serialize;

use crate::progress::{Progress, Unit};
use crate::quiet;

/// How an image came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    /// As a bundle.
    #[default]
    Bundle,
    /// As layers.
    Layers,
}

/// The object of `--json`. Fields are added, none is taken away.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// As it was asked for, in full.
    pub(super) image: String,
    /// Of its manifest.
    pub(super) digest: String,
    pub(super) method: Method,
    /// Why not as a bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// From the sockets, TLS and HTTP heads included.
    pub(super) bytes_received: u64,
    pub(super) contents: Counts,
    /// Images of this machine that the bundle builds upon.
    pub(super) have: usize,
    /// Of these, the ones that the server does not know.
    pub(super) have_unknown: usize,
    pub(super) connections: usize,
    /// Frames that an earlier, unfinished pull had brought.
    pub(super) frames_resumed: u64,
    /// From the start to all contents being in the store; its record follows, beside the export, once they are on the disk.
    pub(super) seconds: f64,
    /// For writing it in the form that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) export_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) output: Option<String>,
    /// What the form could not be given here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

/// File contents by how they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// They were here.
    pub(super) reused: u64,
    /// As a patch against what was here.
    pub(super) patched: u64,
    /// In part out of what was here.
    pub(super) chunked: u64,
    /// Whole.
    pub(super) full: u64,
}

impl Counts {
    pub(super) fn of(counts: &pierhead_worker::store::Counts) -> Self {
        Self {
            reused: counts.reused.contents,
            patched: counts.patched.contents,
            chunked: counts.chunked.contents,
            full: counts.full.contents,
        }
    }
}

/// See the head of this module.
pub(super) struct View {
    json: bool,
    /// Standard output is the image's.
    is_piped: bool,
    bar: Progress,
}

impl View {
    /// The bar goes to standard error, and shows only if that is a terminal.
    pub(super) fn new(json: bool, is_piped: bool) -> Self {
        Self {
            json,
            is_piped,
            bar: Progress::new(json),
        }
    }

    /// A part of the work begins, of so many bytes.
    pub(super) fn begin(&self, what: &str, total: u64) {
        self.bar.begin(what, Unit::Bytes, total);
    }

    /// As [`Self::begin`], for work that the server counts in another unit.
    pub(super) fn begin_of(&self, what: &str, unit: Unit, total: u64) {
        self.bar.begin(what, unit, total);
    }

    /// So many of them are done.
    pub(super) fn at(&self, done: u64) {
        self.bar.at(done);
    }

    /// So many more of them are done; from any thread.
    pub(super) fn more(&self, bytes: u64) {
        self.bar.more(bytes);
    }

    /// A line that stays.
    pub(super) fn say(&self, line: &str) {
        if !self.json && !quiet::is_set() {
            self.bar.suspend(|| eprintln!("{line}"));
        }
    }

    /// Prints the result. With `--quiet` prints only warnings, unless `--json` asks for the object.
    pub(super) fn report(&self, report: &Report) -> std::io::Result<()> {
        self.bar.finish();
        if quiet::is_set() && !self.json {
            for warning in &report.warnings {
                eprintln!("warning: {warning}");
            }
            return Ok(());
        }
        let text = match self.json {
            true => serde_json::to_string(report)? + "\n",
            false => lines(report),
        };
        match self.is_piped {
            true => std::io::stderr().lock().write_all(text.as_bytes()),
            false => std::io::stdout().lock().write_all(text.as_bytes()),
        }
    }
}

fn lines(report: &Report) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let contents = &report.contents;
    let _ = writeln!(text, "pulled    {}", report.image);
    let _ = writeln!(text, "digest    {}", report.digest);
    let _ = writeln!(
        text,
        "received  {} in {:.1?}{}",
        human_bytes(report.bytes_received),
        Duration::from_secs_f64(report.seconds.max(0.0)),
        match report.method {
            Method::Bundle => "",
            Method::Layers => ", as layers",
        }
    );
    let _ = writeln!(
        text,
        "contents  {} here already, {} patched, {} in part, {} whole",
        contents.reused, contents.patched, contents.chunked, contents.full
    );
    if let Some(output) = &report.output {
        let _ = writeln!(text, "written   {output}");
    }
    for warning in &report.warnings {
        let _ = writeln!(text, "warning   {warning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_what_scripts_read() {
        let report = Report {
            image: "docker.io/library/redis:7".to_owned(),
            bytes_received: 7,
            ..Report::default()
        };
        let json = serde_json::to_value(&report).expect("an object");
        assert_eq!(json["bytes_received"], 7);
        assert_eq!(json["method"], "bundle");
        let contents = serde_json::json!({"reused":0,"patched":0,"chunked":0,"full":0});
        assert_eq!(json["contents"], contents);
        assert!(
            lines(&report).contains("received  7 B in 0.0"),
            "{}",
            lines(&report)
        );
    }
}
