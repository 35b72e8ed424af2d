//! `cargo xtask test`: runs all checks of the repository, the same on every machine and in CI.
//!
//! If one step fails, the other steps still run, so that one run reports all failures.

pub(crate) mod aarch64;
pub(crate) mod programs;
mod schedule;
mod steps;
pub(crate) mod test_count;

use std::{
    fs,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use parking_lot::Mutex;

use crate::{
    console::{self, say},
    exec, install, paths,
};
use steps::Shared;
use test_count::TestCount;

/// Flags of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only these steps (repeatable); see --list.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// Run all steps except these (repeatable).
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// Run only format, clippy and unit tests: needs only Rust, no root, and installs nothing.
    #[arg(long, conflicts_with = "only")]
    quick: bool,
    /// Install nothing. Steps that need a missing program fail or are skipped.
    #[arg(long)]
    no_install: bool,
    /// List the steps and exit.
    #[arg(long)]
    list: bool,
}

/// The steps of `--quick`.
const QUICK: [&str; 4] = ["fmt", "build", "clippy", "unit"];

impl Options {
    fn chooses(&self, name: &str) -> bool {
        let among = |names: &[String]| names.iter().any(|it| it == name);
        (self.only.is_empty() || among(&self.only))
            && (!self.quick || QUICK.contains(&name))
            && !among(&self.skip)
            && !(self.no_install && name == "install")
    }
}

/// A step of `cargo xtask test`.
struct Step {
    name: &'static str,
    about: &'static str,
    /// Expected duration in seconds, on two cores, in a run of all steps from an empty build
    /// folder.
    seconds: u64,
    /// Expected duration in seconds if an earlier run has compiled and installed everything.
    warm_seconds: u64,
    /// Whether the step compiles in cargo's build folder.
    compiles: bool,
    /// Whether the step runs at a low priority. The other steps are on the longest path, which ends
    /// with the end-to-end tests.
    yields: bool,
    /// Steps that must have ended before this step begins.
    after: &'static [&'static str],
    run: fn(&Shared) -> Result<Outcome>,
}

impl Step {
    fn head(&self) -> String {
        format!("\n=== {}: {}", self.name, self.about)
    }
}

/// Outcome of a step.
enum Outcome {
    /// The check passed.
    Passed,
    /// Tests ran; some may have failed.
    Tests(TestCount),
    /// A part of the check passed. The rest of the check could not run, for this reason.
    Partly(&'static str, String),
    /// The check cannot run on this machine, for this reason.
    Cannot(String),
}

const STEPS: &[Step] = &[
    Step {
        name: "install",
        about: "tools that the checks need: Debian packages, Go programs, a Rust target, cargo-deny, Python packages",
        seconds: 300,
        warm_seconds: 1,
        compiles: false,
        yields: false,
        after: &[],
        run: steps::install,
    },
    Step {
        name: "fmt",
        about: "cargo fmt --check",
        seconds: 5,
        warm_seconds: 2,
        compiles: true,
        yields: false,
        after: &[],
        run: steps::fmt,
    },
    Step {
        name: "build",
        about: "the daemon and all tests",
        seconds: 330,
        warm_seconds: 1,
        compiles: true,
        yields: false,
        after: &[],
        run: steps::build,
    },
    Step {
        name: "deny",
        about: "licences, sources, bans and advisories of dependencies",
        seconds: 5,
        warm_seconds: 1,
        compiles: false,
        yields: true,
        after: &["install"],
        run: steps::deny,
    },
    Step {
        name: "corpus",
        about: "the images that the end-to-end tests pull",
        seconds: 40,
        warm_seconds: 1,
        compiles: false,
        yields: false,
        after: &["install"],
        run: steps::corpus,
    },
    Step {
        name: "dist",
        about: "the container image, the Debian package and the bill of materials, of the program under test",
        seconds: 20,
        warm_seconds: 12,
        compiles: false,
        yields: false,
        after: &["install", "build"],
        run: steps::dist,
    },
    Step {
        name: "e2e",
        about: "pierhead as a process, real registries, real clients",
        seconds: 600,
        warm_seconds: 500,
        compiles: false,
        yields: false,
        after: &["install", "build", "corpus", "dist"],
        run: steps::end_to_end,
    },
    Step {
        name: "clippy",
        about: "cargo clippy, warnings are errors",
        seconds: 240,
        warm_seconds: 1,
        compiles: true,
        yields: true,
        after: &[],
        run: steps::clippy,
    },
    Step {
        name: "doc",
        about: "cargo doc, warnings are errors, and the examples in it",
        seconds: 70,
        warm_seconds: 3,
        compiles: true,
        yields: true,
        after: &[],
        run: steps::doc,
    },
    Step {
        name: "unit",
        about: "unit, property and architecture tests",
        seconds: 300,
        warm_seconds: 280,
        compiles: false,
        yields: true,
        after: &["install", "build"],
        run: steps::unit,
    },
    Step {
        name: "aarch64",
        about: "the binary for the DPU: built, and pulled through under emulation",
        seconds: 300,
        warm_seconds: 260,
        compiles: true,
        yields: true,
        // The step also builds packages, and only one process at a time may use apt's folder.
        after: &["install", "build", "corpus", "dist"],
        run: steps::aarch64,
    },
    Step {
        name: "pmem",
        about: "persistent memory, in a virtual machine that has some: what survives is there",
        seconds: 200,
        warm_seconds: 90,
        compiles: false,
        yields: false,
        after: &["install", "build"],
        run: steps::pmem,
    },
    Step {
        name: "dpu",
        about: "a whole simulated DPU: pulled through, restarted, and its power cut",
        seconds: 50,
        warm_seconds: 32,
        compiles: false,
        yields: false,
        after: &["install", "build", "aarch64"],
        run: steps::dpu,
    },
    Step {
        name: "chart",
        about: "the Helm charts: linted, rendered with many values, held against Kubernetes' schemas and pierhead's own check; compose.yaml",
        seconds: 45,
        warm_seconds: 24,
        compiles: false,
        yields: true,
        after: &["install", "build"],
        run: steps::chart,
    },
];

/// Runs the steps, and returns whether all passed.
///
/// # Errors
/// An option names an unknown step.
pub(crate) fn run(options: &Options) -> Result<bool> {
    if options.list {
        for step in STEPS {
            println!("{:8} {:4} s  {}", step.name, step.seconds, step.about);
        }
        return Ok(true);
    }
    if let Some(unknown) = options
        .only
        .iter()
        .chain(&options.skip)
        .find(|name| STEPS.iter().all(|step| step.name != name.as_str()))
    {
        bail!("no step is called {unknown}: see `cargo xtask test --list`");
    }
    let chosen: Vec<&Step> = STEPS
        .iter()
        .filter(|step| options.chooses(step.name))
        .collect();
    if chosen.is_empty() {
        bail!("these options choose no step: see `cargo xtask test --list`");
    }
    println!(
        "{}",
        expectation(&chosen, &|step| paths::step_marker(step.name).exists())
    );
    let started = Instant::now();
    let chosen_any = |is: &dyn Fn(&Step) -> bool| chosen.iter().any(|step| is(step));
    let shared = Shared::new(
        chosen_any(&|step| matches!(step.name, "pmem" | "dpu")),
        chosen_any(&|step| step.name == "build" || step.after.contains(&"build")),
    );
    let report = Mutex::new(Report::default());
    let alone = chosen.len() == 1;
    schedule::run(&chosen, |step| {
        let started_at = Instant::now();
        let (outcome, text) = if alone {
            println!("{}", step.head());
            (attempt(step, &shared), Vec::new())
        } else {
            let log = paths::step_log(step.name);
            println!("... {} begins: {}", step.name, log.display());
            console::gather(&log, || {
                say!("{}", step.head());
                attempt(step, &shared)
            })
            .unwrap_or_else(|error| (Err(error), Vec::new()))
        };
        if matches!(
            outcome,
            Ok(Outcome::Passed | Outcome::Tests(_) | Outcome::Partly(..))
        ) {
            // Without the marker, the next run only announces a longer time.
            let _ = fs::write(paths::step_marker(step.name), "");
        }
        let time = started_at.elapsed();
        shared.took(step.name, time, None);
        let mut report = report.lock();
        print!("{}", String::from_utf8_lossy(&text));
        report.add(step.name, outcome);
        println!("=== {}: {:.1} s", step.name, time.as_secs_f64());
    });
    println!("\nSlowest of {:.0} s:", started.elapsed().as_secs_f64());
    for part in shared.slowest().iter().take(12) {
        println!(
            "{:8.1} s  {}{}",
            part.time.as_secs_f64(),
            part.name,
            of_cpu(part.cpu_time)
        );
    }
    if let Ok(cpu_time) = exec::cpu_time(std::process::id()) {
        println!("{:8.1} s  of CPU time", cpu_time.as_secs_f64());
    }
    Ok(report.into_inner().close())
}

/// How much CPU time a part took, for a line of output.
fn of_cpu(time: Option<Duration>) -> String {
    time.map_or_else(String::new, |it| {
        format!(" ({:.1} s of CPU)", it.as_secs_f64())
    })
}

/// Runs a step. A step that panics has failed.
fn attempt(step: &Step, shared: &Shared) -> Result<Outcome> {
    let outcome = catch_unwind(AssertUnwindSafe(|| (step.run)(shared)));
    outcome.unwrap_or_else(|_| bail!("it panicked"))
}

/// A line for the waiting developer: the number of steps and the expected time. A step is warm if it
/// has run before in this build folder.
fn expectation(chosen: &[&Step], is_warm: &dyn Fn(&Step) -> bool) -> String {
    let steps = chosen.len();
    let expected = |step: &Step| match is_warm(step) {
        true => step.warm_seconds,
        false => step.seconds,
    };
    let minutes = schedule::seconds(chosen, expected).div_ceil(60);
    let cold = chosen.iter().filter(|step| !is_warm(step)).count();
    let first = match cold {
        0 => String::new(),
        cold => format!("; {cold} for the first time in this build folder"),
    };
    format!("{steps} steps, about {minutes} min on two idle cores{first}")
}

/// Maximum number of skipped tests that the last line names.
const NAMED: usize = 8;

/// Sums up the outcomes of the steps.
#[derive(Default)]
struct Report {
    passed: u64,
    failed: u64,
    skipped: Vec<String>,
    failures: Vec<String>,
    notes: Vec<String>,
}

impl Report {
    fn add(&mut self, name: &str, outcome: Result<Outcome>) {
        match outcome {
            Ok(Outcome::Passed) => self.passed += 1,
            Ok(Outcome::Tests(count)) => {
                self.passed += count.passed;
                self.failed += count.failed;
                self.skipped
                    .extend(count.skipped.iter().map(|test| format!("{name} {test}")));
                self.failures
                    .extend(count.failures.iter().map(|test| format!("{name}: {test}")));
            }
            Ok(Outcome::Partly(what, why)) => {
                self.passed += 1;
                self.skipped.push(format!("{name} {what}"));
                self.notes.push(format!("{name}: {what}: {why}"));
            }
            Ok(Outcome::Cannot(reason)) if install::is_ci() => {
                self.fail(
                    name,
                    &format!("cannot run, which in CI is a failure: {reason}"),
                );
            }
            Ok(Outcome::Cannot(reason)) => {
                self.skipped.push(name.to_owned());
                self.notes.push(format!("{name}: {reason}"));
            }
            Err(error) => self.fail(name, &format!("{error:#}")),
        }
    }

    fn fail(&mut self, name: &str, reason: &str) {
        println!("{name} FAILED: {reason}");
        self.failed += 1;
        self.failures.push(format!("{name}: {reason}"));
    }

    /// Prints the summary as the last output, and returns whether all steps passed.
    fn close(self) -> bool {
        if !self.notes.is_empty() {
            println!("\n!!! NOT CHECKED HERE:");
            for note in &self.notes {
                println!("!!!   {note}");
            }
        }
        if !self.failures.is_empty() {
            println!("\nFailed:");
            for failure in &self.failures {
                println!("  {failure}");
            }
        }
        // Machines parse the last line of the output, so standard error must be written before it.
        let _ = std::io::stderr().flush();
        println!("\n{}", self.sum());
        self.failed == 0
    }

    /// The last line of the output. The line names skipped tests, because some readers look only at
    /// the last line.
    fn sum(&self) -> String {
        let mut sum = format!("{} passed, {} failed", self.passed, self.failed);
        if !self.skipped.is_empty() {
            let named = &self.skipped[..self.skipped.len().min(NAMED)];
            sum += &format!(", {} skipped: {}", self.skipped.len(), named.join("; "));
            if named.len() < self.skipped.len() {
                sum += "; ...";
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_first_line_says_how_long_it_takes() {
        let of = |names: &[&str], warm: &[&str]| {
            let chosen: Vec<_> = STEPS
                .iter()
                .filter(|step| names.contains(&step.name))
                .collect();
            expectation(&chosen, &|step| warm.contains(&step.name))
        };
        let two = ["clippy", "doc"];
        assert_eq!(
            of(&two, &[]),
            "2 steps, about 6 min on two idle cores; 2 for the first time in this build folder"
        );
        assert_eq!(
            of(&two, &["clippy"]),
            "2 steps, about 2 min on two idle cores; 1 for the first time in this build folder"
        );
        assert_eq!(of(&two, &two), "2 steps, about 1 min on two idle cores");
        assert!(STEPS.iter().all(|step| step.warm_seconds <= step.seconds));
        assert!(STEPS.iter().all(|step| step.warm_seconds > 0));
    }

    #[test]
    fn quick_is_what_needs_nothing_but_rust() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let chosen = |words: &[&str]| {
            let line = Line::try_parse_from(["test"].iter().chain(words)).ok()?;
            let names = STEPS.iter().map(|step| step.name);
            Some(
                names
                    .filter(|name| line.options.chooses(name))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            chosen(&["--quick"]),
            Some(vec!["fmt", "build", "clippy", "unit"])
        );
        assert_eq!(
            chosen(&["--quick", "--skip", "clippy"]),
            Some(vec!["fmt", "build", "unit"])
        );
        assert_eq!(chosen(&["--quick", "--only", "e2e"]), None);
        assert_eq!(chosen(&[]).map(|it| it.len()), Some(STEPS.len()));
        // No quick step waits for a step that installs or starts something.
        for step in STEPS.iter().filter(|step| QUICK.contains(&step.name)) {
            let awaited = step.after.iter().filter(|name| **name != "install");
            assert!(
                awaited.clone().all(|name| QUICK.contains(name)),
                "{}",
                step.name
            );
        }
    }

    #[test]
    fn a_step_that_panics_has_failed() {
        let step = Step {
            name: "panics",
            about: "",
            seconds: 1,
            warm_seconds: 1,
            compiles: false,
            yields: false,
            after: &[],
            run: |_| panic!("for the test"),
        };
        let mut report = Report::default();
        report.add(step.name, attempt(&step, &Shared::new(false, false)));
        assert_eq!(report.failures, ["panics: it panicked"]);
    }

    #[test]
    fn the_last_line_names_what_was_not_looked_at() {
        let mut report = Report::default();
        report.add("fmt", Ok(Outcome::Passed));
        assert_eq!(report.sum(), "1 passed, 0 failed");
        report.add(
            "deny",
            Ok(Outcome::Partly("advisories", "no network".into())),
        );
        let mut count = TestCount {
            passed: 4,
            ..TestCount::default()
        };
        count.skips("pod::serves\n");
        report.add("e2e", Ok(Outcome::Tests(count)));
        assert_eq!(
            report.sum(),
            "5 passed, 0 failed, 2 skipped: deny advisories; e2e pod::serves"
        );
        report.skipped = vec!["x".to_owned(); NAMED + 1];
        assert!(
            report
                .sum()
                .ends_with(" skipped: x; x; x; x; x; x; x; x; ...")
        );
    }
}
