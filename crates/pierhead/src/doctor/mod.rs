//! `pierhead doctor`: checks configuration, machine and clients, and names the fix for each finding.
//!
//! The checks run concurrently, each with its own time limit, so the command ends in seconds whatever hangs. It changes
//! nothing.

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

use std::fs;
use std::future::Future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::cli::doctor::DoctorArgs;
use crate::config::{self, Config};
use crate::environment::Environment;
use crate::exit_code::{CommandError, ExitReason};
use report::{Finding, Level};

/// No check takes longer; each has smaller limits inside.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs it.
pub(crate) fn run(args: &DoctorArgs, environment: &Environment) -> Result<(), CommandError> {
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
        return Err(CommandError::Reported(ExitReason::Clock));
    }
    match report::worst(&findings) {
        Level::Fail => Err(CommandError::Reported(ExitReason::Failed)),
        _ => Ok(()),
    }
}

async fn examine(args: &DoctorArgs, environment: &Environment) -> Vec<Finding> {
    let mut overrides = args.serve.overrides();
    // The admin address decides whom to ask for the file, so it is known before the file is.
    let admin = overrides.admin.unwrap_or(Some(Config::DEFAULT_ADMIN));
    let mut running = daemon::ask(admin).await;
    let mut findings = Vec::new();
    let file = args.serve.config.clone().or_else(|| {
        let named = running.file()?;
        if is_trusted(&named) {
            return Some(named);
        }
        let named = named.display();
        findings.push(Finding::warn(
            "configuration",
            format!(
                "{named}, which the running pierhead names, is not read: missing, or writable by other users"
            ),
            format!("name it with `--config {named}` if you trust it"),
        ));
        None
    });
    // With another file on the command line, the user asks what that file would do.
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
                let fix = "fix the line; `pierhead config check FILE` tells when it is good";
                findings.push(Finding::fail("configuration", line, fix));
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
    // The file does not have the flags of the daemon's command line.
    if let Some(shown) = running.config().filter(|_| is_its_file) {
        let (data, machine) = (&environment.default_data, &environment.machine);
        match config::load_shown(shown, &config, &overrides, data, machine) {
            Ok((effective, without)) => {
                config = effective;
                let is_good =
                    |it: &&mut Finding| it.about == "configuration" && it.level == Level::Ok;
                if let Some(finding) = findings.iter_mut().find(is_good) {
                    finding
                        .what
                        .push_str("; with the flags of the running pierhead");
                }
                findings.extend(without.iter().map(no_login));
            }
            // The daemon is of another version with other keys, so only the file is checked.
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

/// A finding for an upstream whose login is not checked.
fn no_login(about: &String) -> Finding {
    Finding::warn(
        about,
        "its login is not checked: the running pierhead shows other addresses or another login than its configuration \
         file, as far as this user can read it",
        "run this as root or as the user that pierhead runs as, and pass the same --upstream",
    )
}

/// Whether only root and this user can change a file. An untrusted process on the admin port could name any file, and
/// that file could send any secret to any address. An unreadable file counts as trusted: reading it fails later.
fn is_trusted(file: &Path) -> bool {
    let us = rustix::process::geteuid().as_raw();
    let is_ours = |path: &Path| {
        fs::symlink_metadata(path).is_ok_and(|meta| may_be_followed(meta.uid(), meta.mode(), us))
    };
    match file.canonicalize() {
        Ok(file) => file.ancestors().all(is_ours),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

const fn may_be_followed(owner: u32, mode: u32, us: u32) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    (owner == 0 || owner == us) && (mode & WRITABLE_BY_OTHERS == 0 || mode & STICKY != 0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_others_is_not_followed() {
        for (owner, mode, good) in [
            (0, 0o100_644, true),
            (1000, 0o100_600, true),
            (1001, 0o100_600, false),
            (0, 0o100_646, false),
            // A sticky folder such as /tmp: users cannot replace files of others.
            (0, 0o041_777, true),
            (0, 0o040_777, false),
        ] {
            assert_eq!(may_be_followed(owner, mode, 1000), good, "{owner} {mode:o}");
        }
    }

    #[test]
    fn a_folder_that_all_can_write_makes_its_files_theirs() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pierhead.toml");
        assert!(!is_trusted(&file), "it is not there");
        fs::write(&file, "").expect("written");
        assert!(is_trusted(&file));
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(), open).expect("ours");
        assert!(!is_trusted(&file));
    }
}
