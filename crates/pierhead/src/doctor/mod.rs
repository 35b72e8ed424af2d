//! `pierhead doctor`: what is well, what is not, and the mend for each finding.
//!
//! Each check has a time limit of its own and none waits for another, so that the whole ends in seconds
//! whatever hangs. Nothing is changed.

mod certificate;
mod clients;
mod daemon;
mod disk;
mod docker_socket;
mod machine;
mod report;
mod share;
mod tier;
mod upstreams;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use crate::cli::doctor::DoctorArgs;
use crate::config::{self, Config};
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use report::{Finding, Level};

/// No check takes longer; each has smaller limits inside.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs it.
pub(crate) fn run(args: &DoctorArgs, environment: &Environment) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .context("cannot start")?;
    let findings = runtime.block_on(examine(args, environment));
    // What hangs in a read of a dead disk must not keep us.
    runtime.shutdown_background();
    report::print(&findings, args.json)?;
    let failed = |finding: &&Finding| finding.level == Level::Fail;
    if findings.iter().filter(failed).any(|it| it.is_clock) {
        return Err(Failure::Found(Exit::Clock));
    }
    match report::worst(&findings) {
        Level::Fail => Err(Failure::Found(Exit::Failed)),
        _ => Ok(()),
    }
}

async fn examine(args: &DoctorArgs, environment: &Environment) -> Vec<Finding> {
    let mut overrides = args.serve.overrides();
    // The admin address decides whom to ask for the file, so it is known before the file is.
    let admin = overrides.admin.unwrap_or(Some(Config::DEFAULT_ADMIN));
    let mut running = daemon::ask(admin).await;
    let file = args.serve.config.clone().or_else(|| running.file());
    // Somebody who names another file asks what that file would do.
    let is_its_file = match (&args.serve.config, running.file()) {
        (None, _) => true,
        (Some(named), Some(its)) => {
            let resolved = |path: &PathBuf| path.canonicalize().ok();
            resolved(named).is_some() && resolved(named) == resolved(&its)
        }
        (Some(_), None) => false,
    };
    if args.serve.config.is_none() {
        running.complete(&mut overrides);
    }
    let mut findings = Vec::new();
    let mut config = match config::load(
        file.as_deref(),
        &overrides,
        &environment.default_data,
        &environment.machine,
    ) {
        Ok(config) => {
            findings.push(Finding::ok("configuration", shown(file.as_ref())));
            config
        }
        Err(refused) => {
            for line in refused.to_string().lines() {
                let mend = "mend the line; `pierhead config check FILE` tells when it is good";
                findings.push(Finding::fail("configuration", line, mend));
            }
            overrides.upstreams.clear();
            config::load(
                None,
                &overrides,
                &environment.default_data,
                &environment.machine,
            )
            .unwrap_or_else(|_| Config::with_data(environment.default_data.clone()))
        }
    };
    if config.admin != admin {
        running = daemon::ask(config.admin).await;
    }
    // Flags of its command line stand in no file.
    if let Some(shown) = running.config().filter(|_| is_its_file) {
        let (data, machine) = (&environment.default_data, &environment.machine);
        match config::load_shown(shown, &config, &overrides, data, machine) {
            Ok((effective, missing)) => {
                config = effective;
                let is_good =
                    |it: &&mut Finding| it.about == "configuration" && it.level == Level::Ok;
                if let Some(finding) = findings.iter_mut().find(is_good) {
                    finding
                        .what
                        .push_str("; with the flags of the running pierhead");
                }
                findings.extend(missing.iter().map(no_secret));
            }
            // Another version's keys: the file is all that there is.
            Err(error) => findings.push(Finding::warn(
                "configuration",
                format!(
                    "this program cannot read what the running pierhead is configured with: {error}"
                ),
                "use the program that runs: `systemctl restart pierhead` after an upgrade",
            )),
        }
    }
    findings.extend(daemon::look(&running, &config));
    let certificate = certificate::look(&config);
    let served = running.tier();
    let on_disk = {
        let config = config.clone();
        let in_use = running.in_use();
        blocking("disk", move || {
            let mut findings = disk::look(&config, in_use);
            findings.extend(tier::look(&config, served.as_ref()));
            findings
        })
    };
    let (ports, on_disk, on_machine, of_clients, of_upstreams) = tokio::join!(
        bounded("ports", daemon::ports(&running, &config)),
        bounded("disk", on_disk),
        bounded(
            "machine",
            blocking("machine", {
                let (config, machine) = (config.clone(), environment.machine.clone());
                move || {
                    let mut findings = machine::look(&config);
                    findings.extend(share::look(&config, &machine));
                    findings
                }
            })
        ),
        bounded(
            "clients",
            clients::look(&running, &config, environment, args)
        ),
        bounded("upstreams", async {
            if args.offline {
                return Vec::new();
            }
            upstreams::look(&config, environment, &args.registries).await
        }),
    );
    for group in [
        ports,
        certificate.into_iter().collect(),
        on_disk,
        on_machine,
        of_clients,
        of_upstreams,
    ] {
        findings.extend(group);
    }
    findings
}

/// The login of an upstream is not looked at.
fn no_secret(registry: &pierhead_oci::Registry) -> Finding {
    Finding::warn(
        format!("upstream {registry}"),
        "its login is not checked: the password stands in a file that this user cannot read",
        "run this as root, or as the user that pierhead runs as",
    )
}

fn shown(file: Option<&PathBuf>) -> String {
    match file {
        Some(file) => format!("{} is good", file.display()),
        None => "no file: the defaults, which need none".to_owned(),
    }
}

/// A group of checks, or that it took too long.
async fn bounded(about: &str, work: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(findings) => findings,
        Err(_) => vec![Finding::fail(
            about,
            format!("no result within {} s", PATIENCE.as_secs()),
            "something below hangs: see `dmesg` for the disk, `ip route` for the network",
        )],
    }
}

/// Work that blocks, on a thread of its own.
async fn blocking(
    about: &'static str,
    work: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    match tokio::task::spawn_blocking(work).await {
        Ok(findings) => findings,
        Err(error) => vec![Finding::fail(
            about,
            format!("the check itself failed: {error}"),
            "tell the authors",
        )],
    }
}
