//! Tests of `--quiet`: what the `cache` commands and `doctor` print, and what the daemon logs.

use std::time::Duration;

use pierhead_testkit::registry::{FakeRegistry, Fault};
use rustix::process::Signal;

use crate::commands::{IMAGE, with_image};
use crate::harness::{Daemon, send_signal, soon, start_only};

#[tokio::test]
async fn a_quiet_cache_command_prints_only_failures() {
    let (_registry, _, daemon) = with_image().await;
    let silent: [&[&str]; 6] = [
        &["warm", IMAGE],
        &["pin", IMAGE],
        &["verify"],
        &["unpin", IMAGE],
        &["prune", "--all"],
        &["warm", "--pin", IMAGE],
    ];
    let quiet = async |arguments: &[&str]| {
        let arguments = [arguments, &["--quiet"][..]].concat();
        daemon.cache(&arguments).await
    };
    for arguments in silent {
        let nothing = (Some(0), String::new(), String::new());
        assert_eq!(quiet(arguments).await, nothing, "{arguments:?}");
    }
    // A prune that stays above its target.
    let (code, out, err) = quiet(&["prune", "--to", "200KiB"]).await;
    assert_eq!((code, &*out, &*err), (Some(0), "", ""));
    // Results that the user asked for are printed.
    let table = quiet(&["ls"]).await.1;
    assert!(
        table.starts_with("IMAGE ") && table.contains(IMAGE),
        "{table}"
    );
    let pins = quiet(&["ls", "--pins"]).await.1;
    assert!(pins.starts_with(IMAGE), "{pins}");
    let stat = quiet(&["stat"]).await.1;
    assert!(stat.contains("blobs       5, "), "{stat}");
    // Failures are printed.
    let absent = "lab:5000/team/app:none";
    let (code, out, err) = quiet(&["warm", IMAGE, absent]).await;
    assert_eq!(code, Some(1), "{out}{err}");
    let failed = format!("failed {absent}: ");
    assert!(
        out.starts_with(&failed) && out.lines().count() == 1,
        "{out}"
    );
    assert!(err.contains("1 failed"), "{err}");
    for command in ["pin", "unpin", "rm"] {
        let (code, out, err) = quiet(&[command, absent]).await;
        assert_eq!((code, &*out), (Some(1), ""), "{command}: {err}");
        assert!(err.contains(absent), "{command}: {err}");
    }
    daemon.cached(&["unpin", IMAGE]).await;
    let (code, out, err) = quiet(&["rm", IMAGE]).await;
    assert_eq!((code, &*out, &*err), (Some(0), "", ""));
    assert_eq!(daemon.cached(&["ls"]).await.lines().count(), 1);
}

#[tokio::test]
async fn a_quiet_doctor_prints_no_good_results() {
    let registry = FakeRegistry::start().await;
    let broken = FakeRegistry::start().await;
    broken.inject(Fault::Status(500).on("*"));
    let [good, bad] = [("lab:5000", &registry), ("broken:5000", &broken)]
        .map(|(name, registry)| format!("{name}={}", registry.url()));
    let daemon = Daemon::start("", &["--upstream", &good, "--upstream", &bad]).await;
    let doctor = async |quiet: &[&str]| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pierhead"));
        command.args(["doctor", "--admin", &daemon.admin.to_string()]);
        let output = soon("its end", command.args(quiet).output()).await;
        let output = output.expect("pierhead runs");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let all = doctor(&[]).await;
    let is_good = |line: &&str| line.starts_with("ok");
    assert!(all.lines().any(|line| is_good(&line)), "{all}");
    let quiet = doctor(&["--quiet"]).await;
    assert!(!quiet.lines().any(|line| is_good(&line)), "{quiet}");
    for shown in [all, quiet] {
        assert!(shown.contains("upstream broken:5000"), "{shown}");
    }
}

#[tokio::test]
async fn a_quiet_daemon_logs_no_information_unless_a_flag_sets_the_level() {
    let folder = tempfile::tempdir().expect("a folder");
    // The flag takes precedence over the configuration file.
    std::fs::write(folder.path().join("pierhead.toml"), "log.level = \"info\"")
        .expect("the file is written");
    let child = start_only(folder.path(), |command| {
        command.arg("--quiet");
    });
    let ready = folder.path().join("ready");
    soon("the start", async {
        while !ready.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    send_signal(&child, Signal::TERM);
    let output = soon("the end", child.wait_with_output()).await;
    let output = output.expect("it is our child");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert!(!log.contains("INFO"), "{log}");

    // The harness waits for a log line of the level info.
    let daemon = Daemon::start("", &["--quiet", "--log", "info"]).await;
    assert!(daemon.log().contains("INFO"), "{}", daemon.log());
}
