//! `cargo xtask eviction-table`: generates the result tables in `docs/explanation/eviction.md` from
//! `pierhead-replay --json`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::{exec, paths};

/// Seeds of the workloads on which the policies were tuned.
const TUNING: std::ops::RangeInclusive<u64> = 1..=2;
const TEST: std::ops::RangeInclusive<u64> = 3..=12;
const SIZES: [&str; 2] = ["1%", "10%"];
/// Quantiles of Student's t for a two-sided interval of 95 %, for 1, 2, … degrees of freedom.
const T: [f64; 11] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201,
];

/// Flags of `eviction-table`.
#[derive(Args)]
pub(crate) struct Options {
    /// Traces to replay in addition to the synthetic workloads, in any format that
    /// `pierhead-replay` reads.
    #[arg(value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Release build of pierhead-replay, instead of `release/pierhead-replay` in the build folder.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Do not replay the synthetic workloads.
    #[arg(long)]
    no_synthetic: bool,
}

/// Result of a replay for one policy and one cache size.
#[derive(Clone, Copy)]
struct Figures {
    object: f64,
    byte: f64,
    waiting: f64,
    speed: f64,
}

/// Results by (trace, size, policy). The policies have the order of their replay.
#[derive(Default)]
struct Table {
    rows: BTreeMap<(String, String, String), Figures>,
    policies: Vec<String>,
}

/// Replays all traces and workloads, and prints the tables as Markdown.
///
/// # Errors
/// A replay fails, or its output has an unexpected format.
pub(crate) fn run(options: &Options) -> Result<()> {
    let usual = paths::target().join("release/pierhead-replay");
    let program = options.program.as_deref().unwrap_or(&usual);
    let mut table = Table::default();
    if !options.no_synthetic {
        let seeds: Vec<String> = TUNING.chain(TEST).map(|seed| seed.to_string()).collect();
        table.add(replay(program).args(["--synthetic", "--seed", &seeds.join(",")]))?;
        table.print_mean("Synthetic, tuning set", TUNING);
        table.print_mean("Synthetic, test set", TEST);
        table.print_seeds(&["lru", "s3-fifo", "size-split", "learned"]);
        for (one, other) in [("learned", "size-split"), ("size-split", "lru")] {
            table.print_paired(one, other);
        }
    }
    for trace in &options.traces {
        table.add(replay(program).arg("--trace").arg(trace))?;
        let name = trace.file_name().unwrap_or_default().to_string_lossy();
        table.print_trace(&trace.display().to_string(), &name);
    }
    Ok(())
}

fn replay(program: &Path) -> Command {
    let mut command = Command::new(program);
    // One replay at a time, because a busy machine would lower the measured requests per second.
    let flags = ["--json", "--jobs", "1", "--policy", "all", "--size"];
    command.args(flags).arg(SIZES.join(","));
    command
}

impl Table {
    fn add(&mut self, replay: &mut Command) -> Result<()> {
        let document: Value = serde_json::from_slice(&exec::output(replay)?)?;
        let rows = document["rows"].as_array().context("no rows")?;
        for row in rows {
            let text = |name: &str| row[name].as_str().map(str::to_owned).context("a text");
            let number = |name: &str| row[name].as_f64().context("a number");
            let policy = text("policy")?;
            if !self.policies.contains(&policy) {
                self.policies.push(policy.clone());
            }
            let figures = Figures {
                object: number("object_miss_ratio")?,
                byte: number("byte_miss_ratio")?,
                waiting: number("waiting_seconds")?,
                speed: number("requests_per_second")?,
            };
            self.rows
                .insert((text("trace")?, text("size")?, policy), figures);
        }
        Ok(())
    }

    fn get(&self, trace: &str, size: &str, policy: &str) -> Option<Figures> {
        let key = (trace.to_owned(), size.to_owned(), policy.to_owned());
        self.rows.get(&key).copied()
    }

    fn of_seed(&self, seed: u64, size: &str, policy: &str) -> Option<Figures> {
        self.get(&format!("synthetic-{seed}"), size, policy)
    }

    fn print_head(title: &str) {
        println!("\n**{title}** (object / byte miss ratio)\n");
        println!("| policy | 1 % | 10 % | waiting, hours, 1 % / 10 % | M requests/s |");
        println!("|---|---|---|---|---|");
    }

    fn print_row(policy: &str, cells: [Figures; 2]) {
        let [small, large] = cells;
        println!(
            "| {policy} | {:.3} / {:.3} | {:.3} / {:.3} | {:.1} / {:.1} | {:.1} |",
            small.object,
            small.byte,
            large.object,
            large.byte,
            small.waiting / 3600.0,
            large.waiting / 3600.0,
            f64::midpoint(small.speed, large.speed) / 1e6,
        );
    }

    fn print_trace(&self, trace: &str, name: &str) {
        Self::print_head(name);
        for policy in &self.policies {
            let cells = SIZES.map(|size| self.get(trace, size, policy));
            if let [Some(small), Some(large)] = cells {
                Self::print_row(policy, [small, large]);
            }
        }
    }

    fn print_mean(&self, title: &str, seeds: std::ops::RangeInclusive<u64>) {
        Self::print_head(&format!(
            "{title}, mean of seeds {} to {}",
            seeds.start(),
            seeds.end()
        ));
        for policy in &self.policies {
            let cells = SIZES.map(|size| {
                let all: Vec<Figures> = seeds
                    .clone()
                    .filter_map(|seed| self.of_seed(seed, size, policy))
                    .collect();
                let mean =
                    |value: fn(&Figures) -> f64| mean(&all.iter().map(value).collect::<Vec<_>>());
                Figures {
                    object: mean(|of| of.object),
                    byte: mean(|of| of.byte),
                    waiting: mean(|of| of.waiting),
                    speed: mean(|of| of.speed),
                }
            });
            Self::print_row(policy, cells);
        }
    }

    /// Prints the results of each seed, because a mean could hide one.
    fn print_seeds(&self, policies: &[&str]) {
        println!("\n**Seed by seed** (object / byte miss ratio at 1 %; at 10 %)\n");
        println!("| seed | {} |", policies.join(" | "));
        println!("|---{}|", "|---".repeat(policies.len()));
        for seed in TUNING.chain(TEST) {
            print!("| {seed} |");
            for policy in policies {
                let cells = SIZES.map(|size| self.of_seed(seed, size, policy));
                let cells = cells.iter().flatten();
                let cells = cells.map(|of| format!("{:.3} / {:.3}", of.object, of.byte));
                print!(" {} |", cells.collect::<Vec<_>>().join("; "));
            }
            println!();
        }
    }

    /// Prints how much longer clients wait under policy `one` than under policy `other`, in percent
    /// of the latter.
    fn print_paired(&self, one: &str, other: &str) {
        println!(
            "\n**Waiting under {one} beside {other}, test set**: difference in %, less is better\n"
        );
        println!("| size | mean | 95 % confidence | worst seed | best seed |");
        println!("|---|---|---|---|---|");
        for size in SIZES {
            let all: Vec<f64> = TEST
                .filter_map(|seed| {
                    let (one, other) = (
                        self.of_seed(seed, size, one)?,
                        self.of_seed(seed, size, other)?,
                    );
                    Some(100.0 * (one.waiting - other.waiting) / other.waiting)
                })
                .collect();
            let (middle, half) = (mean(&all), half_width(&all));
            let worst = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let best = all.iter().copied().fold(f64::INFINITY, f64::min);
            println!(
                "| {size} | {middle:+.2} | {:+.2} to {:+.2} | {worst:+.2} | {best:+.2} |",
                middle - half,
                middle + half
            );
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Half the width of the 95 % confidence interval of the mean, by Student's t. `None` for a single
/// value.
fn half_width(values: &[f64]) -> f64 {
    let middle = mean(values);
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    let freedom = values.len().saturating_sub(1);
    let t = freedom
        .checked_sub(1)
        .and_then(|at| T.get(at))
        .copied()
        .unwrap_or(f64::NAN);
    t * (squares / freedom as f64 / values.len() as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_a_textbook() {
        // Mean 5, standard deviation 3.0277, n = 10: 2.262 × 3.0277 / √10.
        let values: Vec<f64> = (1..=10).map(|n| f64::from(n) - 0.5).collect();
        assert!((mean(&values) - 5.0).abs() < 1e-9);
        assert!(
            (half_width(&values) - 2.1657).abs() < 1e-3,
            "{}",
            half_width(&values)
        );
        assert!(half_width(&[1.0]).is_nan());
    }
}
