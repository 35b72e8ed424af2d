//! `pierhead replay`: traces from files, policies in threads, figures to people and programs.

mod player;
mod report;
mod run;
mod size;
mod source;
mod svg;
mod unpack;
mod verdict;

use std::path::Path;
use std::thread;

use anyhow::Context as _;

use crate::cli::replay::ReplayArgs;
use crate::exit_code::CommandError;
use report::{Report, Row};
use run::Plan;
use source::Source;

pub(crate) use player::Player;
pub(crate) use size::CacheSize;

/// `pierhead replay`.
///
/// One trace is in memory at a time.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), CommandError> {
    let mut players: Vec<Player> = Vec::new();
    for player in args.policy.iter().flat_map(|players| players.iter()) {
        if !players.contains(player) {
            players.push(*player);
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
            return Err(CommandError::Usage(
                "--save-state keeps one state for each policy and size: name one trace and one --seed, or join files with --join".to_owned(),
            ));
        }
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    if args.export.is_some() && sources.len() > 1 {
        return Err(CommandError::Usage(
            "one --export file holds one trace: name one, give one --seed, or join files with --join".to_owned(),
        ));
    }
    let mut report = Report::default();
    for source in sources {
        let trace = source.read(args)?;
        trace.warn();
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
                held: &trace.held,
                players: &players,
                sizes: &args.size,
                seed,
                rules: args.rules,
                admission: args.admission,
                save: args.save_state.as_deref(),
                restore: args.restore_state.as_deref(),
            };
            let rows = plan.run(jobs, !args.json)?;
            report.rows.extend(
                rows.into_iter()
                    .map(|figures| Row::new(&trace, seed, figures)),
            );
        }
        report.traces.push(trace.summary());
    }
    report.verdicts = verdict::of(&report, args.current);
    if let Some(path) = &args.svg {
        write(path, &svg::plot(&report))?;
    }
    report.print(args.json)?;
    Ok(())
}

/// Each once, in the order in which they came first.
fn distinct(all: &[u64]) -> Vec<u64> {
    let mut seeds = Vec::new();
    for seed in all {
        if !seeds.contains(seed) {
            seeds.push(*seed);
        }
    }
    seeds
}

fn sources(args: &ReplayArgs, seeds: &[u64]) -> Vec<Source> {
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
