//! `pierhead doctor`: checks configuration, host, upstreams and clients, and prints the fix for
//! each problem.
//!
//! The checks run concurrently, each with its own time limit, so that the command ends in seconds
//! even if a check hangs. The speed test of the disk writes a temporary file; no other check writes
//! anything.

mod certificate;
mod clients;
mod daemon;
mod disk;
mod docker_socket;
mod host_resources;
mod machine;
mod report;
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
use crate::cli::exit_code::{CommandError, ExitReason};
use crate::config::environment::Environment;
use crate::config::{self, Config};
use report::{Finding, Severity};

/// Time limit of a group of checks. Each check in the group has a shorter time limit.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs the command `pierhead doctor`.
pub(crate) fn run(args: &DoctorArgs, environment: &Environment) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .build()
        .context("cannot start")?;
    let findings = runtime.block_on(examine(args, environment));
    // Does not wait for threads that hang while they read from a failed disk.
    runtime.shutdown_background();
    report::print(&findings, args.json)?;
    let failed = |finding: &&Finding| finding.level == Severity::Fail;
    if findings.iter().filter(failed).any(|it| it.is_clock_error) {
        return Err(CommandError::Reported(ExitReason::Clock));
    }
    match report::worst(&findings) {
        Severity::Fail => Err(CommandError::Reported(ExitReason::Failed)),
        _ => Ok(()),
    }
}

async fn examine(args: &DoctorArgs, environment: &Environment) -> Vec<Finding> {
    let mut overrides = args.serve.overrides();
    // The daemon at the admin address names its configuration file, so doctor needs the admin
    // address first.
    let admin = overrides.admin.unwrap_or(Some(Config::DEFAULT_ADMIN));
    let mut running = daemon::query(admin).await;
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
                "{named}, the file of the running pierhead, is not read: it is missing, or other users can write to it"
            ),
            format!("pass `--config {named}` if you trust the file"),
        ));
        None
    });
    // A file on the command line that is not the daemon's file is checked without the flags of the
    // running daemon.
    let is_file_of_daemon = match (&args.serve.config, running.file()) {
        (None, _) => true,
        (Some(named), Some(of_daemon)) => {
            let resolved = |path: &PathBuf| path.canonicalize().ok();
            resolved(named).is_some() && resolved(named) == resolved(&of_daemon)
        }
        (Some(_), None) => false,
    };
    if args.serve.config.is_none() {
        running.add_flags(&mut overrides);
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
                let fix = "fix the line; `pierhead config check FILE` checks the result";
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
        running = daemon::query(config.admin).await;
    }
    // Checks the configuration that the running daemon prints, since the file alone lacks the flags
    // of the daemon's command line.
    if let Some(shown) = running.config().filter(|_| is_file_of_daemon) {
        let (data, machine) = (&environment.default_data, &environment.machine);
        match config::load_shown(shown, &config, &overrides, data, machine) {
            Ok((effective, without)) => {
                config = effective;
                let is_ok =
                    |it: &&mut Finding| it.about == "configuration" && it.level == Severity::Ok;
                if let Some(finding) = findings.iter_mut().find(is_ok) {
                    finding
                        .what
                        .push_str(", with the flags of the running pierhead");
                }
                findings.extend(without.iter().map(unchecked_credentials));
            }
            // The running daemon has another version, with other configuration keys. So only the
            // file is checked.
            Err(error) => findings.push(Finding::warn(
                "configuration",
                format!(
                    "this version cannot parse the configuration of the running pierhead: {error}"
                ),
                "use the same version: after an upgrade, run `systemctl restart pierhead`",
            )),
        }
    }
    findings.extend(daemon::check(&running, &config));
    let certificate = certificate::check(&config);
    let served_tier = running.tier();
    let on_disk = {
        let config = config.clone();
        let in_use = running.bytes_in_use();
        blocking("disk", move || {
            let mut findings = disk::check(&config, in_use);
            findings.extend(tier::check(&config, served_tier.as_ref()));
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
                    let mut findings = machine::check(&config);
                    findings.extend(host_resources::check(&config, &machine));
                    findings
                }
            })
        ),
        bounded(
            "clients",
            clients::check(&running, &config, environment, args)
        ),
        bounded("upstreams", async {
            if args.offline {
                return Vec::new();
            }
            upstreams::check(&config, environment, &args.registries).await
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

/// Returns the finding for an upstream whose credentials are not checked.
fn unchecked_credentials(about: &String) -> Finding {
    Finding::warn(
        about,
        "its credentials are not checked: the running pierhead has other addresses or credentials than its configuration \
         file, as far as this user can read the file",
        "run doctor as root or as the user of pierhead, with the same --upstream flags",
    )
}

/// Whether only root and this user can change a file. A foreign process on the admin port could
/// name a configuration file of its own, with which doctor would send secrets to any address. An
/// unreadable file counts as trusted, since a later step fails to read the file.
fn is_trusted(file: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_protected = |path: &Path| {
        fs::symlink_metadata(path)
            .is_ok_and(|meta| is_protected_from_others(meta.uid(), meta.mode(), own))
    };
    match file.canonicalize() {
        Ok(file) => file.ancestors().all(is_protected),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

const fn is_protected_from_others(owner: u32, mode: u32, own: u32) -> bool {
    const WRITABLE_BY_OTHERS: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    (owner == 0 || owner == own) && (mode & WRITABLE_BY_OTHERS == 0 || mode & STICKY != 0)
}

fn shown(file: Option<&PathBuf>) -> String {
    match file {
        Some(file) => format!("{} is valid", file.display()),
        None => "no file: pierhead uses its defaults".to_owned(),
    }
}

/// Runs a group of checks. If the group exceeds its time limit, reports this as a finding.
async fn bounded(about: &str, work: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
    match tokio::time::timeout(CHECK_TIMEOUT, work).await {
        Ok(findings) => findings,
        Err(_) => vec![Finding::fail(
            about,
            format!("no result within {} s", CHECK_TIMEOUT.as_secs()),
            "the disk or the network hangs: see `dmesg` for the disk, `ip route` for the network",
        )],
    }
}

/// Runs blocking checks on a separate thread.
async fn blocking(
    about: &'static str,
    work: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    match tokio::task::spawn_blocking(work).await {
        Ok(findings) => findings,
        Err(error) => vec![Finding::fail(
            about,
            format!("the check itself failed: {error}"),
            "this is a bug: report it with the output of `pierhead doctor --json`",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_other_users_can_change_is_not_trusted() {
        for (owner, mode, expected) in [
            (0, 0o100_644, true),
            (1000, 0o100_600, true),
            (1001, 0o100_600, false),
            (0, 0o100_646, false),
            // A sticky folder such as /tmp: users cannot replace files of other users.
            (0, 0o041_777, true),
            (0, 0o040_777, false),
        ] {
            assert_eq!(
                is_protected_from_others(owner, mode, 1000),
                expected,
                "{owner} {mode:o}"
            );
        }
    }

    #[test]
    fn a_file_in_a_folder_that_all_users_can_write_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pierhead.toml");
        assert!(!is_trusted(&file), "the file is missing");
        fs::write(&file, "").expect("written");
        assert!(is_trusted(&file));
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(), open).expect("ours");
        assert!(!is_trusted(&file));
    }
}
