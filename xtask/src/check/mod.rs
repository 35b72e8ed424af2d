//! `cargo xtask test`: every check there is, the same for everybody and for CI.
//!
//! A failing step does not keep the next ones from running, so that one run tells all there is to
//! mend. The last line is `N passed, M failed`: tests, and each other check as one; then what could not be looked at.

pub(crate) mod aarch64;
pub(crate) mod count;
pub(crate) mod programs;
mod steps;

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::install;
use count::Count;
use programs::Built;

/// Which checks to run, and how.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these steps (repeatable); see --list.
    #[arg(long, value_name = "STEP")]
    only: Vec<String>,
    /// All but these steps (repeatable).
    #[arg(long, value_name = "STEP")]
    skip: Vec<String>,
    /// Install nothing: what misses a program fails or is skipped.
    #[arg(long)]
    no_install: bool,
    /// Say what the steps are, and stop.
    #[arg(long)]
    list: bool,
}

impl Options {
    fn chooses(&self, name: &str) -> bool {
        let among = |names: &[String]| names.iter().any(|it| it == name);
        (self.only.is_empty() || among(&self.only))
            && !among(&self.skip)
            && !(self.no_install && name == "install")
    }
}

/// A check.
struct Step {
    name: &'static str,
    about: &'static str,
    /// On two cores that have nothing else to do, from an empty build folder.
    seconds: u64,
    run: fn(&mut State) -> Result<Outcome>,
}

/// What became of a step that could be carried out.
enum Outcome {
    /// It holds.
    Passed,
    /// Tests ran; some may have failed.
    Tests(Count),
    /// It holds as far as it could be looked at: what could not, and why.
    Partly(&'static str, String),
    /// It cannot run here.
    Cannot(String),
}

/// What steps leave for later ones.
#[derive(Default)]
struct State {
    /// Whether a virtual machine is going to be used: it is much to install.
    machine: bool,
    /// Test programs and the daemon, once built.
    built: Option<Built>,
    /// Parts with their times, for the list of the slowest.
    times: Vec<(String, Duration)>,
}

const STEPS: &[Step] = &[
    Step {
        name: "install",
        about: "what the checks need: Debian packages, Go programs, a Rust target, cargo-deny, Python packages",
        seconds: 300,
        run: steps::install,
    },
    Step {
        name: "fmt",
        about: "cargo fmt --check",
        seconds: 5,
        run: steps::fmt,
    },
    Step {
        name: "deny",
        about: "licences, sources, bans and advisories of what we depend on",
        seconds: 5,
        run: steps::deny,
    },
    Step {
        name: "clippy",
        about: "cargo clippy, warnings are errors",
        seconds: 155,
        run: steps::clippy,
    },
    Step {
        name: "doc",
        about: "cargo doc, warnings are errors, and the examples in it",
        seconds: 175,
        run: steps::doc,
    },
    Step {
        name: "unit",
        about: "unit, property and architecture tests",
        seconds: 465,
        run: steps::unit,
    },
    Step {
        name: "chart",
        about: "the Helm charts: linted, rendered with many values, held against Kubernetes' schemas and pierhead's own check; compose.yaml",
        seconds: 45,
        run: steps::chart,
    },
    Step {
        name: "dist",
        about: "the container image, the Debian package and the bill of materials, of the program under test",
        seconds: 20,
        run: steps::dist,
    },
    Step {
        name: "corpus",
        about: "the images that the end-to-end tests pull",
        seconds: 40,
        run: steps::corpus,
    },
    Step {
        name: "e2e",
        about: "pierhead as a process, real registries, real clients",
        seconds: 675,
        run: steps::end_to_end,
    },
    Step {
        name: "pmem",
        about: "persistent memory, in a virtual machine that has some: what survives is there",
        seconds: 145,
        run: steps::pmem,
    },
    Step {
        name: "aarch64",
        about: "the binary for the DPU: built, and pulled through under emulation",
        seconds: 210,
        run: steps::aarch64,
    },
    Step {
        name: "dpu",
        about: "a whole simulated DPU: pulled through, restarted, and its power cut",
        seconds: 50,
        run: steps::dpu,
    },
];

/// Runs the checks and says whether all hold.
///
/// # Errors
/// When an option names no step.
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
    println!("{}", expectation(&chosen));
    let started = Instant::now();
    let mut state = State {
        machine: options.chooses("pmem") || options.chooses("dpu"),
        ..State::default()
    };
    let mut report = Report::default();
    for step in chosen {
        println!("\n=== {}: {}", step.name, step.about);
        let begun = Instant::now();
        let outcome = (step.run)(&mut state);
        let time = begun.elapsed();
        state.times.push((step.name.to_owned(), time));
        report.add(step.name, outcome);
        println!("=== {}: {:.1} s", step.name, time.as_secs_f64());
    }
    state
        .times
        .sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    println!("\nSlowest of {:.0} s:", started.elapsed().as_secs_f64());
    for (name, time) in state.times.iter().take(12) {
        println!("{:8.1} s  {name}", time.as_secs_f64());
    }
    Ok(report.close())
}

/// What somebody who waits wants to know first.
fn expectation(chosen: &[&Step]) -> String {
    let seconds: u64 = chosen.iter().map(|step| step.seconds).sum();
    let steps = chosen.len();
    let minutes = seconds.div_ceil(60);
    format!("{steps} steps, about {minutes} min on two idle cores")
}

/// How many of what was skipped the last line names.
const NAMED: usize = 8;

/// Adds up what became of the steps.
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

    /// Prints the sum, last of all, and says whether everything holds.
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
        // What went to standard error must not come after the line that is read by machines.
        let _ = std::io::stderr().flush();
        println!("\n{}", self.sum());
        self.failed == 0
    }

    /// The last line: whoever reads no other one must see what was not looked at.
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
    use super::*;

    #[test]
    fn the_first_line_says_how_long_it_takes() {
        let of = |names: &[&str]| {
            let chosen: Vec<_> = STEPS
                .iter()
                .filter(|step| names.contains(&step.name))
                .collect();
            expectation(&chosen)
        };
        assert_eq!(
            of(&["clippy", "doc"]),
            "2 steps, about 6 min on two idle cores"
        );
        assert!(STEPS.iter().all(|step| step.seconds > 0));
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
        let mut count = Count {
            passed: 4,
            ..Count::default()
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
