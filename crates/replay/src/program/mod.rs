//! The program `pierhead-replay`: reads traces, replays them in threads, prints tables or JSON, and
//! draws charts.

pub(crate) mod cli;
mod miss_ratio_chart;
mod report;
mod run;
mod size;
mod source;
mod unpack;
mod verdict;

use std::path::Path;
use std::thread;

use anyhow::Context as _;

use pierhead_replay::SimulatedPolicy;

use cli::Cli;
use report::{Report, Row};
use run::Plan;
use source::Source;

pub(crate) use size::CacheSize;

/// The error of the program, with its exit code.
pub(crate) enum Failure {
    /// The flags contradict each other. The text says how to fix the flags. The exit code is 2.
    Usage(String),
    /// Any other error. The exit code is 1.
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// Runs the replays of the command line.
///
/// At any time, only one trace is in memory.
pub(crate) fn run(args: &Cli) -> Result<(), Failure> {
    let mut policies: Vec<SimulatedPolicy> = Vec::new();
    for policy in args.policy.iter().flat_map(|policies| policies.iter()) {
        if !policies.contains(policy) {
            policies.push(*policy);
        }
    }
    let jobs = args.jobs.map_or_else(
        || thread::available_parallelism().map_or(1, usize::from),
        usize::from,
    );
    let seeds = distinct(&args.seed);
    let sources = sources(args, &seeds);
    if let Some(folder) = &args.save_state {
        if sources.len() > 1 || seeds.len() > 1 {
            return Err(Failure::Usage(
                "--save-state keeps one state for each policy and size: name one trace and one --seed, or join files with --join".to_owned(),
            ));
        }
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    if args.export.is_some() && sources.len() > 1 {
        return Err(Failure::Usage(
            "one --export file holds one trace: name one, give one --seed, or join files with --join".to_owned(),
        ));
    }
    let mut report = Report::default();
    for source in sources {
        let trace = source.read(args)?;
        trace.warn(args.quiet);
        if let Some(path) = &args.export {
            trace
                .export(path)
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let seeds = match source {
            Source::Made { seed, .. } => vec![seed],
            Source::Files(_) => seeds.clone(),
        };
        for seed in seeds {
            let plan = Plan {
                trace: &trace.requests,
                policies: &policies,
                sizes: &args.size,
                seed,
                parameters: args.parameters.into(),
                admission: args.admission,
                save: args.save_state.as_deref(),
                restore: args.restore_state.as_deref(),
            };
            let rows = plan.run(jobs, !args.json && !args.quiet)?;
            report.rows.extend(
                rows.into_iter()
                    .map(|result| Row::new(&trace, seed, result)),
            );
        }
        report.traces.push(trace.summary());
    }
    report.verdicts = verdict::of(&report, args.current);
    if let Some(path) = &args.svg {
        write(path, &miss_ratio_chart::plot(&report))?;
    }
    report.print(args.json)?;
    Ok(())
}

/// Returns the distinct seeds, in order of their first occurrence.
fn distinct(all: &[u64]) -> Vec<u64> {
    let mut seeds = Vec::new();
    for seed in all {
        if !seeds.contains(seed) {
            seeds.push(*seed);
        }
    }
    seeds
}

fn sources(args: &Cli, seeds: &[u64]) -> Vec<Source> {
    if args.synthetic {
        let requests = args.requests;
        let made = |seed: &u64| Source::Made {
            seed: *seed,
            requests,
        };
        return seeds.iter().map(made).collect();
    }
    if args.join {
        return vec![Source::Files(args.trace.clone())];
    }
    args.trace
        .iter()
        .map(|path| Source::Files(vec![path.clone()]))
        .collect()
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
