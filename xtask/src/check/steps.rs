//! The steps of `cargo xtask test`. Each step calls a few other programs.

use std::{
    fs,
    num::NonZero,
    path::PathBuf,
    process::Command,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;

use super::{
    Outcome,
    aarch64::Dpu,
    programs::{self, Built, Program},
    test_count::TestCount,
};
use crate::{
    chart,
    console::{self, Console, say},
    corpus, dist, dpu_vm, exec, install, paths, pmem_vm,
};

/// The package whose tests start daemons; its architecture tests count as unit tests.
const END_TO_END: &str = "pierhead-tests";
const STORIES: &str = "pierhead-tests::e2e";
const ARCHITECTURE: &str = "pierhead-tests::architecture";

/// What the steps share. A program that one step compiles serves all steps; an error of the
/// compiler fails all steps that need the program.
pub(super) struct Shared {
    /// Whether a chosen step uses a virtual machine, which needs many packages.
    machine: bool,
    /// Whether a chosen step runs compiled tests.
    tests: bool,
    built: OnceLock<Result<Built, String>>,
    /// The daemon, compiled for arm64.
    cross_built: OnceLock<Result<PathBuf, String>>,
    /// Steps and their parts that have ended.
    parts: Mutex<Vec<Part>>,
}

/// A step or a test program that has ended.
pub(super) struct Part {
    pub(super) name: String,
    /// Time from its beginning to its end.
    pub(super) time: Duration,
    /// CPU time of all its processes, if known.
    pub(super) cpu_time: Option<Duration>,
}

impl Shared {
    /// A state in which nothing is compiled.
    pub(super) fn new(machine: bool, tests: bool) -> Self {
        Self {
            machine,
            tests,
            built: OnceLock::new(),
            cross_built: OnceLock::new(),
            parts: Mutex::default(),
        }
    }

    /// Records the times of a step or a part of it.
    pub(super) fn took(&self, name: &str, time: Duration, cpu_time: Option<Duration>) {
        let name = name.to_owned();
        self.parts.lock().push(Part {
            name,
            time,
            cpu_time,
        });
    }

    /// All recorded steps and parts, the slowest first.
    pub(super) fn slowest(self) -> Vec<Part> {
        let mut parts = self.parts.into_inner();
        parts.sort_by_key(|part| std::cmp::Reverse(part.time));
        parts
    }

    /// The compiled tests and programs; compiles them at the first call.
    fn built(&self) -> Result<&Built> {
        let built = self
            .built
            .get_or_init(|| programs::build().map_err(|error| format!("{error:#}")));
        built.as_ref().map_err(|error| anyhow!("{error}"))
    }

    /// The daemon. If no step needs tests, compiles only the daemon.
    fn daemon(&self) -> Result<PathBuf> {
        if self.tests {
            Ok(self.built()?.daemon.clone())
        } else {
            programs::build_daemon()
        }
    }

    /// The daemon for arm64; compiles it at the first call.
    fn cross_built(&self, dpu: &Dpu) -> Result<PathBuf> {
        let build = || {
            let built = show(&mut dpu.cargo("build", "pierhead"));
            built.map_err(|error| format!("{error:#}"))?;
            Ok(Dpu::binary())
        };
        let binary = self.cross_built.get_or_init(build);
        binary.clone().map_err(|error| anyhow!("{error}"))
    }
}

pub(super) fn install(shared: &Shared) -> Result<Outcome> {
    let wanted = install::OptionalTools {
        machine: shared.machine,
    };
    match install::all(wanted) {
        Ok(()) => Ok(Outcome::Passed),
        Err(error) => Ok(Outcome::Cannot(format!("{error:#}"))),
    }
}

pub(super) fn fmt(_: &Shared) -> Result<Outcome> {
    show(exec::cargo().args(["fmt", "--all", "--check"]))
}

pub(super) fn build(shared: &Shared) -> Result<Outcome> {
    shared.built().map(|_| Outcome::Passed)
}

pub(super) fn clippy(_: &Shared) -> Result<Outcome> {
    show(
        exec::cargo()
            .args(["clippy", "--workspace", "--all-targets", "--quiet"])
            .args(["--keep-going", "--"])
            .args(["-D", "warnings"]),
    )
}

pub(super) fn doc(_: &Shared) -> Result<Outcome> {
    show(
        exec::cargo()
            .env("RUSTDOCFLAGS", "-D warnings")
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .arg("--document-private-items"),
    )?;
    programs::count(exec::cargo().args(["test", "--workspace", "--doc", "--quiet"])).map(
        |mut count| {
            // The build of the documentation is one check.
            count.passed += 1;
            Outcome::Tests(count)
        },
    )
}

pub(super) fn deny(_: &Shared) -> Result<Outcome> {
    let Some(program) = paths::find("cargo-deny") else {
        return Ok(Outcome::Cannot("no cargo-deny".into()));
    };
    let deny = || {
        let mut command = Command::new(&program);
        command
            .current_dir(paths::root())
            .args(["--log-level", "error"]);
        command
    };
    show(
        deny()
            .args(["check", "--hide-inclusion-graph", "-A", "duplicate"])
            .args(["bans", "licenses", "sources"]),
    )?;
    // The advisory database is a git repository, which package registries do not have.
    if let Err(error) = exec::output(deny().args(["fetch", "db"])) {
        let reason = format!("{error:#}");
        let last = reason.lines().last().unwrap_or_default();
        return Ok(Outcome::Partly(
            "advisories",
            format!("the RustSec database cannot be fetched ({last})"),
        ));
    }
    show(deny().args(["check", "--disable-fetch", "advisories"]))
}

pub(super) fn chart(shared: &Shared) -> Result<Outcome> {
    let Some(helm) = paths::find("helm") else {
        return Ok(Outcome::Cannot("no helm".into()));
    };
    let Some(promtool) = paths::find("promtool") else {
        return Ok(Outcome::Cannot("no promtool".into()));
    };
    if paths::find("systemd-analyze").is_none() {
        return Ok(Outcome::Cannot("no systemd-analyze".into()));
    }
    if !paths::tools().join(install::SCHEMAS.0).exists() {
        return Ok(Outcome::Cannot(format!("no {}", install::SCHEMAS.0)));
    }
    chart::check(&helm, &promtool, &shared.daemon()?).map(Outcome::Tests)
}

pub(super) fn unit(shared: &Shared) -> Result<Outcome> {
    let is_wanted =
        |program: &Program| program.package != END_TO_END || program.name == ARCHITECTURE;
    // Many programs wait for time limits of the code under test.
    run(shared, &[], cores(), is_wanted)
}

pub(super) fn dist(shared: &Shared) -> Result<Outcome> {
    // End-to-end tests must not use the image of an earlier run.
    if paths::dist_trial().exists() {
        fs::remove_dir_all(paths::dist_trial())?;
    }
    let missing = dist::missing_for_trial();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    dist::trial(&[&shared.built()?.daemon], &paths::dist_trial())?;
    Ok(Outcome::Passed)
}

pub(super) fn corpus(_: &Shared) -> Result<Outcome> {
    let missing = corpus::missing_tools();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    corpus::build(&paths::corpus(), false)?;
    Ok(Outcome::Passed)
}

/// Number of end-to-end tests that run at the same time. Each test uses less than half a core,
/// because it waits for time limits, mounts and program starts. With more tests at once, responses
/// arrive after the clients' time limits.
fn story_threads() -> String {
    (2 * cores()).to_string()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(2, NonZero::get)
}

pub(super) fn end_to_end(shared: &Shared) -> Result<Outcome> {
    let mut environment = vec![("PIERHEAD_BIN".to_owned(), shared.built()?.daemon.clone())];
    environment.push(("RUST_TEST_THREADS".to_owned(), story_threads().into()));
    if paths::corpus().join("index.json").exists() {
        environment.push(("PIERHEAD_CORPUS".to_owned(), paths::corpus()));
    }
    let image = paths::dist_trial().join(dist::IMAGE);
    if image.exists() {
        environment.push(("PIERHEAD_IMAGE".to_owned(), image));
    }
    if let Some(bin) = paths::go_bin() {
        environment.push(("GOBIN".to_owned(), bin));
    }
    run(shared, &environment, 1, |program| {
        program.package == END_TO_END && program.name != ARCHITECTURE
    })
}

pub(super) fn pmem(shared: &Shared) -> Result<Outcome> {
    let missing = pmem_vm::missing();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    let built = shared.built()?;
    let survivor = built.example("survivor")?;
    pmem_vm::suite_of(&built.programs, &built.daemon, survivor).map(Outcome::Tests)
}

const NO_CROSS: &str = "no aarch64-linux-gnu-gcc or no qemu-aarch64-static";

pub(super) fn aarch64(shared: &Shared) -> Result<Outcome> {
    let Some(dpu) = Dpu::find() else {
        return Ok(Outcome::Cannot(NO_CROSS.into()));
    };
    let binary = shared.cross_built(&dpu)?;
    say!("  {}", dpu.version()?);
    // On arm64, memory copies, cache flushes and page faults differ, so only these tests run under
    // emulation.
    show(dpu.cargo("test", "pierhead-pmem").arg("--lib"))?;
    let missing = dist::missing_for_trial();
    if missing.is_empty() {
        // One image for both platforms, as in a release, so that the check finds files of the wrong
        // platform.
        let scratch = tempfile::tempdir_in(paths::target())?;
        dist::trial(
            &[&shared.built()?.daemon, &binary],
            &scratch.path().join("both"),
        )?;
    }
    let environment = [("PIERHEAD_BIN".to_owned(), dpu.program()?)];
    let program = shared
        .built()?
        .programs
        .iter()
        .find(|it| it.name == STORIES)
        .context("no end-to-end tests were built")?;
    let mut count = program.run_those(&environment, &["smoke::"])?;
    if !missing.is_empty() {
        count.skips("an image of both platforms\n");
    }
    if count.passed + count.failed == 0 {
        bail!("no smoke test ran");
    }
    Ok(Outcome::Tests(count))
}

pub(super) fn dpu(shared: &Shared) -> Result<Outcome> {
    let missing = dpu_vm::missing();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    let Some(dpu) = Dpu::find() else {
        return Ok(Outcome::Cannot(NO_CROSS.into()));
    };
    let peer = shared.built()?.example("peer")?;
    dpu_vm::suite_of(shared.cross_built(&dpu)?, peer).map(Outcome::Tests)
}

/// Runs the chosen test programs, at most `at_once` at the same time.
fn run(
    shared: &Shared,
    environment: &[(String, PathBuf)],
    at_once: usize,
    is_wanted: impl Fn(&Program) -> bool,
) -> Result<Outcome> {
    let programs = shared.built()?.programs.iter();
    let wanted: Vec<_> = programs.filter(|program| is_wanted(program)).collect();
    let wanted = Mutex::new(wanted.into_iter());
    let sum = Mutex::new(TestCount::default());
    let console = Console::current();
    let work = || {
        loop {
            let program = wanted.lock().next();
            let Some(program) = program else { break };
            let count = if at_once == 1 {
                run_one(shared, environment, program)
            } else {
                // The output of a program stays together.
                let log = paths::step_log(&program.name);
                let gathered = console::gather(&log, || run_one(shared, environment, program));
                let (count, text) = gathered.unwrap_or_else(|error| {
                    let mut count = TestCount::default();
                    count.note(&program.name, Err(error));
                    (count, Vec::new())
                });
                say!("{}", String::from_utf8_lossy(&text).trim_end());
                count
            };
            *sum.lock() += &count;
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| console.enter(work));
        }
    });
    let sum = sum.into_inner();
    if sum.passed + sum.failed == 0 {
        bail!("no test ran");
    }
    Ok(Outcome::Tests(sum))
}

/// Runs a test program and prints its result. A program without a result is a failure.
fn run_one(shared: &Shared, environment: &[(String, PathBuf)], program: &Program) -> TestCount {
    let started_at = Instant::now();
    let count = match program.run(environment) {
        Ok(count) => {
            say!(
                "  {:4} passed, {} failed: {} ({:.1} s, {:.1} s of CPU)",
                count.passed,
                count.failed,
                program.name,
                started_at.elapsed().as_secs_f64(),
                count.cpu_time.as_secs_f64()
            );
            count
        }
        Err(error) => {
            say!("  {}: {error:#}", program.name);
            TestCount {
                failed: 1,
                failures: vec![format!("{}: {error:#}", program.name)],
                ..TestCount::default()
            }
        }
    };
    shared.took(&program.name, started_at.elapsed(), Some(count.cpu_time));
    count
}

/// Runs a command whose output describes its errors.
fn show(command: &mut Command) -> Result<Outcome> {
    let name = exec::describe(command);
    let status = command
        .stdin(std::process::Stdio::null())
        .stdout(console::stdio()?)
        .stderr(console::stdio()?)
        .status()
        .with_context(|| format!("start {name}"))?;
    if !status.success() {
        bail!("{name}");
    }
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_at_once_and_the_output_of_each_stays_together() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, other: &str, result: &str| {
            let path = folder.path().join(name);
            // Each program waits until the other one has begun.
            let script = format!(
                "#!/bin/sh\ntouch $0.started; echo {name} one\n\
                 n=0; until [ -e ${{0%/*}}/{other}.started ]; do\n\
                 n=$((n + 1)); [ $n -lt 1000 ] || exit 9; sleep 0.01; done\n\
                 echo {name} two; echo 'test result: {result}'\n"
            );
            // The shell closes the file before this process starts it.
            let write = "printf %s \"$1\" > \"$2\" && chmod +x \"$2\"";
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", write, "sh", &script]).arg(&path);
            assert!(shell.status().unwrap().success());
            Program {
                name: format!("test-of-xtask::{name}"),
                package: "test-of-xtask".to_owned(),
                path,
                folder: folder.path().to_owned(),
            }
        };
        let programs = vec![
            program("a", "b", "ok. 2 passed; 0 failed"),
            program("b", "a", "FAILED. 1 passed; 1 failed"),
            program("unwanted", "a", "ok. 9 passed; 0 failed"),
        ];
        let shared = Shared::new(false, false);
        assert!(shared.built.set(Ok(Built::of(programs))).is_ok());
        let is_wanted = |program: &Program| !program.name.ends_with("unwanted");
        let log = folder.path().join("log");
        let (outcome, text) =
            console::gather(&log, || run(&shared, &[], 2, is_wanted)).expect("a log");
        let Ok(Outcome::Tests(count)) = outcome else {
            panic!("no tests were counted")
        };
        assert_eq!((count.passed, count.failed), (3, 1));
        let text = String::from_utf8(text).unwrap();
        for together in ["  a one\n  a two\n     2 passed", "  b one\n  b two\n"] {
            assert!(text.contains(together), "{text}");
        }
        assert_eq!(shared.slowest().len(), 2);
    }
}
