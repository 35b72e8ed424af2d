//! The steps of `cargo xtask test`, each a few calls of other programs.

use std::{path::PathBuf, process::Command, time::Instant};

use anyhow::{Context, Result, bail};

use super::{
    Outcome, State,
    aarch64::Dpu,
    count::Count,
    programs::{self, Built, Program},
};
use crate::{chart, corpus, dist, dpu_vm, exec, install, place, pmem_vm};

/// The package whose tests start daemons; its architecture tests count as unit tests.
const END_TO_END: &str = "pierhead-tests";
const STORIES: &str = "pierhead-tests::e2e";
const ARCHITECTURE: &str = "pierhead-tests::architecture";

pub(super) fn install(state: &mut State) -> Result<Outcome> {
    let wanted = install::Wanted {
        machine: state.machine,
    };
    match install::all(wanted) {
        Ok(()) => Ok(Outcome::Passed),
        Err(error) => Ok(Outcome::Cannot(format!("{error:#}"))),
    }
}

pub(super) fn fmt(_: &mut State) -> Result<Outcome> {
    show(cargo().args(["fmt", "--all", "--check"]))
}

pub(super) fn clippy(_: &mut State) -> Result<Outcome> {
    show(
        cargo()
            .args(["clippy", "--workspace", "--all-targets", "--quiet"])
            .args(["--keep-going", "--"])
            .args(["-D", "warnings"]),
    )
}

pub(super) fn doc(_: &mut State) -> Result<Outcome> {
    show(
        cargo()
            .env("RUSTDOCFLAGS", "-D warnings")
            .args(["doc", "--workspace", "--no-deps", "--quiet"])
            .arg("--document-private-items"),
    )?;
    programs::count(cargo().args(["test", "--workspace", "--doc", "--quiet"])).map(|mut count| {
        // The documentation itself is one check.
        count.passed += 1;
        Outcome::Tests(count)
    })
}

pub(super) fn deny(_: &mut State) -> Result<Outcome> {
    let Some(program) = place::find("cargo-deny") else {
        return Ok(Outcome::Cannot("no cargo-deny".into()));
    };
    let deny = || {
        let mut command = Command::new(&program);
        command
            .current_dir(place::root())
            .args(["--log-level", "error"]);
        command
    };
    show(
        deny()
            .args(["check", "--hide-inclusion-graph", "-A", "duplicate"])
            .args(["bans", "licenses", "sources"]),
    )?;
    // The database is a git repository that no package registry carries.
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

pub(super) fn chart(state: &mut State) -> Result<Outcome> {
    let Some(helm) = place::find("helm") else {
        return Ok(Outcome::Cannot("no helm".into()));
    };
    let Some(promtool) = place::find("promtool") else {
        return Ok(Outcome::Cannot("no promtool".into()));
    };
    if place::find("systemd-analyze").is_none() {
        return Ok(Outcome::Cannot("no systemd-analyze".into()));
    }
    if !place::tools().join(install::SCHEMAS.0).exists() {
        return Ok(Outcome::Cannot(format!("no {}", install::SCHEMAS.0)));
    }
    // Alone, this step needs no more than the daemon; behind others that is there.
    let daemon = match &state.built {
        Some(built) => built.daemon.clone(),
        None => programs::build_daemon()?,
    };
    chart::check(&helm, &promtool, &daemon).map(Outcome::Tests)
}

pub(super) fn unit(state: &mut State) -> Result<Outcome> {
    run(state, &[], |program| {
        program.package != END_TO_END || program.name == ARCHITECTURE
    })
}

pub(super) fn dist(state: &mut State) -> Result<Outcome> {
    let missing = dist::missing_for_trial();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    let program = built(state)?.daemon.clone();
    dist::trial(&[&program], &place::dist_trial())?;
    Ok(Outcome::Passed)
}

pub(super) fn corpus(_: &mut State) -> Result<Outcome> {
    let missing = corpus::missing_tools();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    corpus::build(&place::corpus(), false)?;
    Ok(Outcome::Passed)
}

pub(super) fn end_to_end(state: &mut State) -> Result<Outcome> {
    let mut environment = vec![("PIERHEAD_BIN".to_owned(), built(state)?.daemon.clone())];
    if place::corpus().join("index.json").exists() {
        environment.push(("PIERHEAD_CORPUS".to_owned(), place::corpus()));
    }
    let image = place::dist_trial().join(dist::IMAGE);
    if image.exists() {
        environment.push(("PIERHEAD_IMAGE".to_owned(), image));
    }
    if let Some(bin) = place::go_bin() {
        environment.push(("GOBIN".to_owned(), bin));
    }
    run(state, &environment, |program| {
        program.package == END_TO_END && program.name != ARCHITECTURE
    })
}

pub(super) fn pmem(state: &mut State) -> Result<Outcome> {
    let missing = pmem_vm::missing();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    let built = built(state)?;
    pmem_vm::suite_of(&built.programs, &built.daemon).map(Outcome::Tests)
}

const NO_CROSS: &str = "no aarch64-linux-gnu-gcc or no qemu-aarch64-static";

pub(super) fn aarch64(state: &mut State) -> Result<Outcome> {
    let Some(dpu) = Dpu::find() else {
        return Ok(Outcome::Cannot(NO_CROSS.into()));
    };
    show(&mut dpu.cargo("build", "pierhead"))?;
    println!("  {}", dpu.version()?);
    // What differs there are copies, flushes and faults.
    show(dpu.cargo("test", "pierhead-pmem").arg("--lib"))?;
    if dist::missing_for_trial().is_empty() {
        // Both platforms in one image, as it is released: nothing of one may slip into the other.
        let scratch = tempfile::tempdir_in(place::target())?;
        let native = built(state)?.daemon.clone();
        dist::trial(&[&native, &Dpu::binary()], &scratch.path().join("both"))?;
    }
    let environment = [("PIERHEAD_BIN".to_owned(), dpu.program()?)];
    let program = built(state)?
        .programs
        .iter()
        .find(|it| it.name == STORIES)
        .context("no end-to-end tests were built")?;
    let count = program.run_those(&environment, &["smoke::"])?;
    if count.passed + count.failed == 0 {
        bail!("no smoke test ran");
    }
    Ok(Outcome::Tests(count))
}

pub(super) fn dpu(_: &mut State) -> Result<Outcome> {
    let missing = dpu_vm::missing();
    if !missing.is_empty() {
        return Ok(Outcome::Cannot(format!("no {}", missing.join(", "))));
    }
    let Some(dpu) = Dpu::find() else {
        return Ok(Outcome::Cannot(NO_CROSS.into()));
    };
    show(&mut dpu.cargo("build", "pierhead"))?;
    dpu_vm::suite_of(Dpu::binary()).map(Outcome::Tests)
}

/// All that tests need, compiled once.
fn built(state: &mut State) -> Result<&Built> {
    if state.built.is_none() {
        let begun = Instant::now();
        let built = programs::build()?;
        state
            .times
            .push(("compiling the tests".to_owned(), begun.elapsed()));
        state.built = Some(built);
    }
    state.built.as_ref().context("it was just built")
}

/// Runs the test programs that are wanted.
fn run(
    state: &mut State,
    environment: &[(String, PathBuf)],
    wanted: impl Fn(&Program) -> bool,
) -> Result<Outcome> {
    built(state)?;
    let State {
        built: Some(built),
        times,
        ..
    } = state
    else {
        bail!("nothing was built");
    };
    let mut sum = Count::default();
    for program in built.programs.iter().filter(|program| wanted(program)) {
        let begun = Instant::now();
        match program.run(environment) {
            Ok(count) => {
                println!(
                    "  {:4} passed, {} failed: {} ({:.1} s)",
                    count.passed,
                    count.failed,
                    program.name,
                    begun.elapsed().as_secs_f64()
                );
                sum += &count;
            }
            Err(error) => {
                println!("  {}: {error:#}", program.name);
                sum.failed += 1;
                sum.failures.push(format!("{}: {error:#}", program.name));
            }
        }
        times.push((program.name.clone(), begun.elapsed()));
    }
    if sum.passed + sum.failed == 0 {
        bail!("no test ran");
    }
    Ok(Outcome::Tests(sum))
}

fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(place::root());
    command
}

/// Runs a command whose own output says what is wrong.
fn show(command: &mut Command) -> Result<Outcome> {
    let name = exec::describe(command);
    let status = command
        .stdin(std::process::Stdio::null())
        .status()
        .with_context(|| format!("start {name}"))?;
    if !status.success() {
        bail!("{name}");
    }
    Ok(Outcome::Passed)
}
