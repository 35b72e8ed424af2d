//! End-to-end tests of `pierhead doctor`: its findings for a healthy daemon, without a daemon, and
//! for each fault.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::registry::FakeRegistry;
use pierhead_tests::{
    clients::Docker,
    paths,
    pierhead::{Options, Pierhead},
    tool::or_skip,
};
use serde_json::{Value, json};

/// Runs doctor. Returns its exit code and its findings.
pub(crate) fn doctor(words: &[&str]) -> Result<(i32, Vec<Value>)> {
    let output = Command::new(paths::pierhead()?)
        .arg("doctor")
        .arg("--json")
        .args(words)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let document: Value = serde_json::from_str(&text)
        .with_context(|| format!("{text}\n{}", String::from_utf8_lossy(&output.stderr)))?;
    let findings = document["findings"].as_array().context("no findings")?;
    for finding in findings {
        let has_fix = finding["fix"].is_string();
        ensure!(
            has_fix == (finding["level"] != "ok"),
            "every finding except \"ok\" has a fix: {finding}"
        );
    }
    Ok((output.status.code().context("a signal")?, findings.clone()))
}

/// The findings about a subject, such as a disk or an upstream.
fn about<'a>(findings: &'a [Value], about: &str) -> Vec<(&'a str, &'a str)> {
    findings
        .iter()
        .filter(|finding| finding["about"] == about)
        .map(|finding| {
            (
                finding["level"].as_str().unwrap_or(""),
                finding["what"].as_str().unwrap_or(""),
            )
        })
        .collect()
}

#[track_caller]
pub(crate) fn one<'a>(findings: &'a [Value], subject: &str) -> (&'a str, &'a str) {
    let all = about(findings, subject);
    assert_eq!(all.len(), 1, "{subject} in {findings:#?}");
    all[0]
}

/// doctor finds the configuration of a running daemon through its admin address.
#[test]
fn a_healthy_daemon_has_no_failures() -> Result<()> {
    let hub = FakeRegistry::builder()
        .basic_auth("someone", "hunter2")
        .start_in_background();
    let folder = paths::scratch("doctor")?;
    let password = folder.path().join("password");
    fs::write(&password, "hunter2\n")?;
    let pierhead = Pierhead::start(
        Options::new().argument("--listen").argument("127.0.0.1:0").config(&format!(
            "[upstreams.\"docker.io\"]\naddresses = {:?}\nusername = \"someone\"\npassword_file = {password:?}",
            hub.url()
        )),
    )?;
    let admin = pierhead.admin().to_string();
    let data = pierhead.data().display().to_string();
    let (code, findings) = doctor(&["--admin", &admin, "--data", &data])?;
    let (level, what) = one(&findings, "upstream docker.io");
    ensure!(
        level == "ok" && what.contains("the credentials work"),
        "{what}"
    );
    assert_eq!(one(&findings, "daemon").0, "ok", "{findings:#?}");
    assert_eq!(one(&findings, "listen").0, "ok");
    let (level, what) = one(&findings, "configuration");
    ensure!(level == "ok" && what.contains("pierhead.toml"), "{what}");
    ensure!(
        !format!("{findings:?}").contains("hunter2"),
        "the output contains a secret"
    );
    // The texts of the findings about the machine vary, but the findings must exist.
    ensure!(!about(&findings, "disk").is_empty() && !about(&findings, "memory").is_empty());
    let failed: Vec<_> = findings
        .iter()
        .filter(|it| {
            it["level"] == "fail" && !it["about"].as_str().unwrap_or("").starts_with("client")
        })
        .collect();
    ensure!(failed.is_empty(), "{failed:#?}");
    let bad = findings.iter().any(|it| it["level"] == "fail");
    assert_eq!(code, i32::from(bad));
    ensure!(
        fs::read_dir(pierhead.data())?
            .flatten()
            .all(|it| !it.file_name().to_string_lossy().contains("doctor"))
    );
    Ok(())
}

/// Runs doctor without a daemon, with one upstream for each kind of failure.
#[test]
fn each_upstream_failure_has_its_finding() -> Result<()> {
    let locked = FakeRegistry::builder()
        .basic_auth("someone", "right")
        .start_in_background();
    let secret = FakeRegistry::builder().tls().start_in_background();
    let token = FakeRegistry::builder().token_auth().start_in_background();
    let folder = paths::scratch("doctor")?;
    let config = folder.path().join("pierhead.toml");
    let password = folder.path().join("password");
    fs::write(&password, "wrong\n")?;
    let token_host = token.token_addr();
    fs::write(
        &config,
        format!(
            "admin = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:0\"\ndata = {:?}\n[upstreams.\"docker.io\"]\naddresses = {:?}\nusername = \"someone\"\npassword_file = {password:?}\n\
             [upstreams.\"refused.lab\"]\naddresses = \"http://127.0.0.1:1\"\n[upstreams.\"nobody.lab\"]\naddresses = \"https://nobody.invalid\"\n\
             [upstreams.\"tls.lab\"]\naddresses = {:?}\n[upstreams.\"token.lab\"]\naddresses = {:?}\ntrusted_hosts = [\"http://{token_host}\"]\n\
             [upstreams.\"two.lab\"]\naddresses = [\"http://127.0.0.1:1\", {:?}]\ntrusted_hosts = [\"http://{token_host}\"]\n",
            folder.path().join("data"),
            locked.url(),
            secret.url(),
            token.url(),
            token.url(),
        ),
    )?;
    let (code, findings) = doctor(&["--config", config.to_str().context("UTF-8")?])?;
    assert_eq!(code, 1);
    for (name, words) in [
        ("docker.io", "refuses the configured credentials"),
        ("refused.lab", "refused"),
        ("nobody.lab", "cannot be resolved"),
        ("tls.lab", "TLS"),
    ] {
        let (level, what) = one(&findings, &format!("upstream {name}"));
        ensure!(
            level == "fail" && what.contains(words),
            "{name}: {level} {what}"
        );
    }
    let (level, what) = one(&findings, "upstream token.lab");
    ensure!(
        level == "ok" && !what.contains("needs credentials"),
        "no token: {what}"
    );
    // One of the two addresses of this upstream is down, but pulls work.
    let two = about(&findings, "upstream two.lab");
    let levels: Vec<_> = two.iter().map(|(level, _)| *level).collect();
    ensure!(
        levels.contains(&"warn") && levels.contains(&"ok"),
        "{two:?}"
    );
    assert_eq!(one(&findings, "daemon").0, "warn");

    token.wait(async |token| token.stop_tokens().await);
    let (_, findings) = doctor(&["--config", config.to_str().context("UTF-8")?])?;
    let (level, what) = one(&findings, "upstream token.lab");
    ensure!(level == "fail", "its token server is down: {what}");

    let (_, findings) = doctor(&["--offline", "--config", config.to_str().context("UTF-8")?])?;
    ensure!(
        findings
            .iter()
            .all(|it| !it["about"].as_str().unwrap_or("").starts_with("upstream")),
        "{findings:#?}"
    );
    ensure!(
        !folder.path().join("data").exists(),
        "doctor creates no folder"
    );
    Ok(())
}

#[test]
fn local_faults_are_found() -> Result<()> {
    let folder = paths::scratch("doctor")?;
    let held = std::net::TcpListener::bind("127.0.0.1:0")?;
    let config = folder.path().join("pierhead.toml");
    let write = |more: &str| {
        fs::write(
            &config,
            format!(
                "admin = \"127.0.0.1:1\"\nlisten = \"{}\"\ndata = {:?}\n{more}",
                held.local_addr()?,
                folder.path().join("data")
            ),
        )
        .map_err(anyhow::Error::from)
    };
    write("[cache]\nsize = \"900TiB\"\n")?;
    let file = config.to_str().context("UTF-8")?;
    let (code, findings) = doctor(&["--offline", "--config", file])?;
    assert_eq!(code, 1);
    let listen = about(&findings, "listen");
    ensure!(
        listen
            .iter()
            .any(|(level, what)| *level == "fail" && what.contains("in use")),
        "{listen:?}"
    );
    let disk = about(&findings, "disk");
    ensure!(
        disk.iter()
            .any(|(level, what)| *level != "ok" && what.contains("cache.size")),
        "{disk:?}"
    );

    write("[cache]\nsiez = 1\n")?;
    let (code, findings) = doctor(&["--offline", "--config", file])?;
    assert_eq!(code, 1);
    let (level, what) = one(&findings, "configuration");
    ensure!(
        level == "fail" && what.contains(":5: ") && what.contains("cache.size"),
        "{what}"
    );
    Ok(())
}

/// doctor reads the active settings of dockerd through its socket.
#[test]
fn a_dockerd_with_unread_settings_is_found() -> Result<()> {
    if or_skip(Docker::find()).is_none() {
        return Ok(());
    }
    let hub = FakeRegistry::builder().start_in_background();
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &hub.url()))?;
    let mut docker = Docker::start(&json!({}), String::new())?;
    let socket = docker.socket().display().to_string();
    let config = docker.config().display().to_string();
    let admin = pierhead.admin().to_string();
    let words = [
        "--offline",
        "--admin",
        &admin,
        "--docker-socket",
        &socket,
        "--dockerd-config",
        &config,
    ];
    let (_, findings) = doctor(&words)?;
    let (level, what) = one(&findings, "client docker");
    ensure!(
        level == "warn" && what.contains("directly from registries"),
        "{what}"
    );

    let mut settings: Value = serde_json::from_slice(&fs::read(docker.config())?)?;
    settings["registry-mirrors"] = json!([format!("http://{}", pierhead.address())]);
    fs::write(docker.config(), settings.to_string())?;
    let (_, findings) = doctor(&words)?;
    let (level, what) = one(&findings, "client docker");
    ensure!(level == "fail" && what.contains("not in effect"), "{what}");

    docker.reload()?;
    let (_, findings) = doctor(&words)?;
    let (level, what) = one(&findings, "client docker");
    ensure!(level == "ok" && what.contains("it is in effect"), "{what}");
    Ok(())
}
