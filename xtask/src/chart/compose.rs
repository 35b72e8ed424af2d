//! Checks `compose.yaml` against the configuration keys of pierhead and the layout of its image.

use std::{path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    check::test_count::TestCount,
    dist::{DATA, PORT, PROGRAM},
    exec, paths,
};

/// Checks `compose.yaml` with `docker compose` (where it is installed) and against the program
/// `daemon`.
///
/// # Errors
/// When a program cannot be started. An error in the file is a failed test.
pub(super) fn check(daemon: &Path, python: &Path, count: &mut TestCount) -> Result<()> {
    let file = paths::root().join("compose.yaml");
    let json = exec::output(
        Command::new(python)
            .arg(paths::root().join("xtask/src/chart/compose.py"))
            .arg(&file),
    )?;
    let compose: Value = serde_json::from_slice(&json)?;
    count.note("compose", service(&compose, daemon));
    let mut docker = Command::new("docker");
    docker.args(["compose", "--file"]).arg(&file);
    let has_compose = exec::output(Command::new("docker").args(["compose", "version"])).is_ok();
    if has_compose {
        let valid = exec::output(docker.args(["config", "--quiet"]));
        count.note("compose::docker", valid.map(drop));
    }
    Ok(())
}

/// Checks that every flag, path and port of the service exists.
fn service(compose: &Value, daemon: &Path) -> Result<()> {
    let service = &compose["services"]["pierhead"];
    let image = format!(
        "${{PIERHEAD_IMAGE:-pierhead:{}}}",
        env!("CARGO_PKG_VERSION")
    );
    ensure!(
        service["image"] == image.as_str(),
        "the image is not {image}"
    );
    accepts(daemon, &words(&service["command"])?)?;
    let health = words(&service["healthcheck"]["test"])?;
    match health.as_slice() {
        ["CMD", program, command @ ..] if *program == format!("/{PROGRAM}") => {
            accepts(daemon, command)?;
        }
        _ => bail!("the health check is {health:?}"),
    }
    let port = format!("127.0.0.1:{PORT}:{PORT}");
    ensure!(words(&service["ports"])? == [port.as_str()], "its ports");
    let volumes = words(&service["volumes"])?;
    let (volume, path) = volumes
        .first()
        .and_then(|it| it.split_once(':'))
        .context("no volume")?;
    ensure!(
        path == format!("/{DATA}"),
        "{path} is not where the data is"
    );
    ensure!(
        compose["volumes"].get(volume).is_some(),
        "no volume {volume}"
    );
    for (key, value) in [
        ("read_only", Value::Bool(true)),
        ("cap_drop", serde_json::json!(["ALL"])),
        (
            "security_opt",
            serde_json::json!(["no-new-privileges:true"]),
        ),
    ] {
        ensure!(service[key] == value, "{key} is {}", service[key]);
    }
    Ok(())
}

fn words(list: &Value) -> Result<Vec<&str>> {
    let words = list.as_array().context("no list")?.iter();
    words.map(|it| it.as_str().context("no text")).collect()
}

/// Checks that the program's help lists this command and all these flags.
fn accepts(daemon: &Path, line: &[&str]) -> Result<()> {
    let is_command = |word: &&&str| !word.starts_with('-');
    let command: Vec<&&str> = line.iter().take_while(is_command).collect();
    let help = exec::text(Command::new(daemon).args(&command).arg("--help"))
        .with_context(|| format!("{command:?}"))?;
    let has = |flag: &str| {
        let mut known = help.split(|it: char| !it.is_ascii_alphanumeric() && it != '-');
        known.any(|it| it == flag)
    };
    for flag in line.iter().filter(|word| word.starts_with('-')) {
        ensure!(has(flag), "{command:?} has no {flag}");
    }
    // The value of a flag must be valid too, such as the name of a profile.
    for pair in line.windows(2).filter(|it| it[0] == "--profile") {
        ensure!(has(pair[1]), "{command:?} has no profile {}", pair[1]);
    }
    Ok(())
}
