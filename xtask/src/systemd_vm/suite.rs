//! Tests of the Debian package and its unit under systemd: installation, service, upgrade, and the
//! actions of an operator.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use super::machine::Machine;
use crate::{
    check::test_count::TestCount,
    guest::{PORTS, Peer, Up, quote},
};

/// Shell command that ends the machine.
pub(super) const POWER_OFF: &str = "finish 0";

const FOLDER: &str = "/var/lib/pierhead";
const CONFIGURATION: &str = "/etc/pierhead/pierhead.toml";
/// A drop-in file, as `systemctl edit` writes it. The watchdog time of 5 s is long enough for an
/// emulated machine, and short enough for the test.
const DROP_IN: (&str, &str) = (
    "/etc/systemd/system/pierhead.service.d/override.conf",
    "[Service]\nMemoryHigh=infinity\nMemoryMax=192M\nWatchdogSec=5\n",
);
/// Time limit for events that usually take seconds, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory budget in pierhead's log: the value of `MemoryMax=` in the drop-in file, in bytes.
const BUDGET: &str = "memory=201326592";

/// Installs the package.
///
/// # Errors
/// dpkg fails. The error has its output.
pub(super) fn install(guest: &mut Up, package: &Path) -> Result<String> {
    let package = quote(&package.display().to_string());
    well(guest, &format!("dpkg --install {package}"))
}

/// Runs the suite. `peer` is the path of the example program, which is the upstream and the client.
///
/// # Errors
/// The machine does not boot.
pub(super) fn run(machine: &Machine, package: &Path, peer: &Path) -> Result<TestCount> {
    let mut peer = Peer::start(peer)?;
    let mut checks = TestCount::default();
    let mut guest = machine.boot()?;
    let (ready, took) = guest.ready();
    println!(
        "  systemd is up after {:.1} s, {ready} s of its own clock",
        took.as_secs_f64()
    );
    let configuration = configuration(&peer.url);

    checks.tell(
        "is installed, with a user, and does not start by itself",
        || {
            install(&mut guest, package)?;
            well(
                &mut guest,
                "getent passwd pierhead && getent group pierhead",
            )?;
            let modes = well(&mut guest, "stat --format '%U:%G %a' /etc/pierhead")?;
            ensure!(modes == "root:pierhead 750", "/etc/pierhead is {modes}");
            ensure!(
                state(&mut guest)? == "inactive dead",
                "{}",
                state(&mut guest)?
            );
            write(&mut guest, CONFIGURATION, &configuration)?;
            well(
                &mut guest,
                &format!("pierhead config check {CONFIGURATION}"),
            )
        },
    );
    checks.tell("starts, its data on the disk that is mounted there", || {
        write(&mut guest, DROP_IN.0, DROP_IN.1)?;
        well(
            &mut guest,
            "systemctl daemon-reload && systemctl enable --now pierhead",
        )?;
        ensure!(
            state(&mut guest)? == "active running",
            "{}",
            state(&mut guest)?
        );
        // systemd waits for READY=1, which arrives with this status text.
        ensure!(
            property(&mut guest, "StatusText")? == "serving",
            "no word of it"
        );
        let owner = well(
            &mut guest,
            &format!("stat --format '%U:%G %a' {FOLDER} {FOLDER}/blobs"),
        )?;
        ensure!(
            owner.starts_with("pierhead:pierhead 750\npierhead:"),
            "{FOLDER} is {owner}"
        );
        let disk = well(
            &mut guest,
            &format!("findmnt --noheadings --output SOURCE --target {FOLDER}/blobs"),
        )?;
        ensure!(disk.ends_with("/dev/vda"), "it writes to {disk}");
        Ok(owner)
    });
    checks.tell("is confined", || {
        let said = well(
            &mut guest,
            "pid=$(systemctl show --value --property=MainPID pierhead); \
             grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$pid/status; \
             echo root $(id -u pierhead) $(grep -E '^[^-]* / / ' /proc/$pid/mountinfo | cut -d' ' -f6)",
        )?;
        let words: Vec<_> = said.split_whitespace().collect();
        let after = |key: &str| {
            let at = words.iter().position(|word| *word == key);
            at.and_then(|at| words.get(at + 1)).copied().unwrap_or_default()
        };
        ensure!(after("Uid:") == after("root") && after("Uid:") != "0", "its user: {said}");
        for (key, wanted) in [
            ("CapEff:", "0000000000000000"),
            ("CapBnd:", "0000000000000000"),
            ("NoNewPrivs:", "1"),
            ("Seccomp:", "2"),
        ] {
            ensure!(after(key) == wanted, "{key} {}", after(key));
        }
        let mounted = words.last().copied().unwrap_or_default();
        ensure!(mounted.split(',').any(|it| it == "ro"), "its root is {mounted}");
        Ok("no capabilities, filtered system calls, a root to read".to_owned())
    });
    checks.tell(
        "reads its limits and the pressure through the sandbox",
        || {
            for resource in ["memory", "cpu"] {
                let series = format!("pierhead_pressure_some{{resource=\"{resource}\"}}");
                // pierhead reports the pressure from its second measurement on, two seconds after
                // the first one.
                let started_at = Instant::now();
                while !peer.get(guest.admin, "/metrics")?.contains(&series) {
                    ensure!(started_at.elapsed() < PATIENCE, "no {series}");
                    thread::sleep(Duration::from_millis(500));
                }
            }
            let log = log(&mut guest)?;
            ensure!(log.contains(BUDGET), "no {BUDGET} in:\n{log}");
            ensure!(!log.contains(" WARN "), "a warning in:\n{log}");
            Ok(BUDGET.to_owned())
        },
    );
    checks.tell("is pulled through", || {
        let pulled = peer.pull(guest.address)?;
        ensure!(pulled.asked > 0, "its upstream was not asked");
        peer.cached(guest.address)?;
        Ok(pulled.to_string())
    });
    checks.tell("reads its configuration again", || {
        well(&mut guest, "systemctl reload pierhead")?;
        ensure!(
            state(&mut guest)? == "active running",
            "{}",
            state(&mut guest)?
        );
        Ok(String::new())
    });
    if let Err(error) = peer.down() {
        bail!("{error:#}");
    }
    checks.tell("is killed, started anew, and has what it had", || {
        well(&mut guest, "systemctl kill --signal=KILL pierhead; anew 1")?;
        Ok(peer.pull(guest.address)?.to_string())
    });
    checks.tell("hangs, and the watchdog has it started anew", || {
        well(&mut guest, "systemctl kill --signal=STOP pierhead; anew 2")?;
        let said = well(
            &mut guest,
            "journalctl --quiet --unit=pierhead --output=cat | grep 'Watchdog timeout'",
        )?;
        peer.pull(guest.address)?;
        Ok(said)
    });
    checks.tell(
        "a package that is installed over a mistake is installed",
        || {
            write(&mut guest, CONFIGURATION, "cache.sice = 1\n")?;
            let said = install(&mut guest, package)?;
            let status = well(
                &mut guest,
                "dpkg-query --show --showformat='${db:Status-Status}\\n' pierhead",
            )?;
            ensure!(status == "installed", "dpkg calls it {status}");
            ensure!(said.contains("pierhead config check"), "no fix in:\n{said}");
            Ok(status)
        },
    );
    checks.tell("a mistake is not tried again", || {
        ensure!(
            state(&mut guest)? == "failed failed",
            "{}",
            state(&mut guest)?
        );
        let status = property(&mut guest, "ExecMainStatus")?;
        ensure!(status == "2", "it ended with {status}");
        Ok(status)
    });
    checks.tell(
        "a package that is installed anew restarts what runs",
        || {
            write(&mut guest, CONFIGURATION, &configuration)?;
            well(&mut guest, "systemctl start pierhead")?;
            let before = property(&mut guest, "MainPID")?;
            install(&mut guest, package)?;
            ensure!(
                state(&mut guest)? == "active running",
                "{}",
                state(&mut guest)?
            );
            let after = property(&mut guest, "MainPID")?;
            ensure!(before != after, "it is still {before}");
            Ok(peer.pull(guest.address)?.to_string())
        },
    );
    checks.tell("ends in order, and is gone with all that it had", || {
        well(&mut guest, "systemctl stop pierhead")?;
        let result = property(&mut guest, "Result")?;
        ensure!(result == "success", "it ended with {result}");
        well(
            &mut guest,
            "systemctl start pierhead && dpkg --purge pierhead",
        )?;
        let left = well(
            &mut guest,
            &format!("ls -A {FOLDER}; ls -d /etc/pierhead /usr/bin/pierhead 2>&- || true"),
        )?;
        ensure!(left.is_empty(), "{left}");
        let state = state(&mut guest)?;
        ensure!(state == "inactive dead", "{state}");
        Ok(result)
    });
    if !checks.failures.is_empty() {
        println!(
            "{}",
            guest.output("journalctl --quiet --no-pager --lines=40")?.1
        );
    }
    let ended = guest.off(POWER_OFF)?;
    println!("  off after {:.1} s", ended.took.as_secs_f64());
    Ok(checks)
}

/// A configuration file with the settings that differ from the package's file.
fn configuration(upstream: &str) -> String {
    let [clients, admin] = PORTS;
    // 10.0.2.2 is the address of this machine in QEMU's network.
    let url = upstream.replacen("127.0.0.1", "10.0.2.2", 1);
    format!(
        "data = \"{FOLDER}\"\nprofile = \"small\"\nlisten = [\"0.0.0.0:{clients}\"]\nadmin = \"0.0.0.0:{admin}\"\n\
         limits.pause_under = [\"memory\", \"cpu\"]\n[upstreams.\"docker.io\"]\naddresses = {url:?}\n"
    )
}

/// Runs a line of shell that must succeed, and returns its output.
fn well(guest: &mut Up, line: &str) -> Result<String> {
    let (status, said) = guest.output(line)?;
    if status != 0 {
        bail!("{line}: {status}\n{said}\n{}", log(guest)?);
    }
    Ok(said.trim_end().to_owned())
}

fn write(guest: &mut Up, path: &str, content: &str) -> Result<()> {
    // The shell command is one line, so printf creates the line breaks.
    let escaped = content
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('%', "%%");
    let line = format!(
        "mkdir -p $(dirname {path}) && printf {} > {path}",
        quote(&escaped)
    );
    well(guest, &line).map(drop)
}

fn property(guest: &mut Up, name: &str) -> Result<String> {
    well(
        guest,
        &format!("systemctl show --value --property={name} pierhead"),
    )
}

fn state(guest: &mut Up) -> Result<String> {
    let said = well(
        guest,
        "systemctl show --value --property=ActiveState --property=SubState pierhead",
    )?;
    Ok(said.replace('\n', " "))
}

fn log(guest: &mut Up) -> Result<String> {
    Ok(guest
        .output("journalctl --quiet --no-pager --unit=pierhead --output=cat --lines=30")?
        .1)
}
