//! Prints the results of replays: a table, or one JSON document.

use std::io::{self, Write as _};

use pierhead_oci::units::human_bytes;
use serde::Serialize;

use super::run::ReplayResult;
use super::source::{Summary, Trace};
use super::verdict::Verdict;

/// The results of all replays.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    pub(crate) traces: Vec<Summary>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// The result of one policy at one cache size on one trace.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) trace: String,
    pub(crate) seed: u64,
    pub(crate) policy: &'static str,
    /// The cache size, as the user wrote it in `--size`.
    pub(crate) size: String,
    pub(crate) size_bytes: u64,
    pub(crate) requests: u64,
    pub(crate) object_miss_ratio: f64,
    pub(crate) byte_miss_ratio: f64,
    pub(crate) waiting_seconds: f64,
    pub(crate) upstream_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) evictions: u64,
    pub(crate) passed: u64,
    pub(crate) above_cache: u64,
    pub(crate) requests_per_second: f64,
    pub(crate) memory_bytes: usize,
}

impl Row {
    pub(crate) fn new(trace: &Trace, seed: u64, result: ReplayResult) -> Self {
        let ReplayResult { tally, .. } = &result;
        Self {
            trace: trace.name.clone(),
            seed,
            policy: result.policy.name(),
            size: result.size.to_string(),
            size_bytes: result.capacity,
            requests: tally.requests,
            object_miss_ratio: tally.object_miss_ratio(),
            byte_miss_ratio: tally.byte_miss_ratio(),
            waiting_seconds: tally.waiting_seconds,
            upstream_bytes: tally.missed_bytes,
            written_bytes: tally.written_bytes,
            evictions: tally.evictions,
            passed: tally.passed,
            above_cache: tally.oversized,
            // Divides by at least 1 ns, because the clock may not advance during a short trace.
            requests_per_second: tally.requests as f64 / result.took.as_secs_f64().max(1e-9),
            memory_bytes: result.memory,
        }
    }

    fn cells(&self) -> [String; 9] {
        [
            self.policy.to_owned(),
            self.size.clone(),
            format!("{:.4}", self.object_miss_ratio),
            format!("{:.4}", self.byte_miss_ratio),
            format!("{:.0}", self.waiting_seconds),
            human_bytes(self.upstream_bytes),
            self.evictions.to_string(),
            format!("{:.2} M", self.requests_per_second / 1e6),
            human_bytes(self.memory_bytes as u64),
        ]
    }
}

const HEADS: [&str; 9] = [
    "policy",
    "size",
    "object misses",
    "byte misses",
    "waiting s",
    "upstream",
    "evictions",
    "requests/s",
    "memory",
];

impl Report {
    pub(crate) fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return out.write_all(b"\n");
        }
        for (at, summary) in self.traces.iter().enumerate() {
            if at > 0 {
                writeln!(out)?;
            }
            writeln!(
                out,
                "{}: {} requests for {} objects of {}",
                summary.trace,
                summary.requests,
                summary.objects,
                human_bytes(summary.footprint_bytes),
            )?;
            let rows: Vec<[String; 9]> = std::iter::once(HEADS.map(str::to_owned))
                .chain(self.rows_of(summary).map(Row::cells))
                .collect();
            let width = |column: usize| rows.iter().map(|row| row[column].len()).max();
            let widths: Vec<usize> = (0..HEADS.len()).filter_map(width).collect();
            for row in &rows {
                let mut line = format!("{:<1$}", row[0], widths[0]);
                for (cell, width) in row.iter().zip(&widths).skip(1) {
                    line.push_str(&format!("  {cell:>width$}"));
                }
                writeln!(out, "{line}")?;
            }
            for verdict in self.verdicts.iter().filter(|it| it.trace == summary.trace) {
                writeln!(out, "{verdict}")?;
            }
        }
        Ok(())
    }

    /// Returns the rows of one trace.
    pub(crate) fn rows_of<'a>(&'a self, summary: &'a Summary) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(|row| row.trace == summary.trace)
    }
}
