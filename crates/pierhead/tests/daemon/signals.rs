//! Tests of signals: SIGHUP reloads the configuration, SIGTERM and SIGINT shut the daemon down.

use pierhead_testkit::http::{Connection, End, Request};
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::harness::{Daemon, send_signal, soon, start_only};

async fn capacity(daemon: &Daemon) -> u64 {
    daemon.get("/v1/stat").await.json()["capacity"]
        .as_u64()
        .expect("a number")
}

#[tokio::test]
async fn a_reload_applies_the_configuration_and_keeps_connections() {
    let daemon = Daemon::start("cache.size = \"1GiB\"", &[]).await;
    let mut client = Connection::open(daemon.listen).await.expect("a connection");
    let ping = Request::get("/v2/");
    assert_eq!(
        client.exchange(&ping).await.expect("a response").status,
        200
    );

    daemon.configure("cache.size = \"2GiB\"\n[log]\nlevel = \"debug\"");
    daemon.signal(Signal::HUP);
    daemon.logs("configuration reloaded").await;
    assert_eq!(capacity(&daemon).await, 2 << 30);

    // After a reload with an error in the file, no key changes, not even the keys before the error.
    daemon.configure("cache.size = \"3GiB\"\ntags.tttl = \"1s\"");
    daemon.signal(Signal::HUP);
    daemon
        .logs("pierhead.toml:2: unknown key \"tags.tttl\": did you mean \"tags.ttl\"?")
        .await;
    assert_eq!(capacity(&daemon).await, 2 << 30);

    // The log names the keys that need a restart; all other changed keys take effect.
    daemon.configure("cache.size = \"4GiB\"\ncache.min_free = \"1MiB\"");
    daemon.signal(Signal::HUP);
    daemon.logs("pierhead.toml:2) changed in").await;
    soon("the change", async {
        while capacity(&daemon).await != 4 << 30 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!daemon.log().contains("listen changed"), "{}", daemon.log());
    assert_eq!(
        client
            .exchange(&ping)
            .await
            .expect("the same connection")
            .status,
        200
    );
}

#[tokio::test]
async fn a_reload_applies_new_upstreams() {
    let (one, two) = (FakeRegistry::start().await, FakeRegistry::start().await);
    for (registry, seed) in [(&one, 1), (&two, 2)] {
        registry.push("team/app", "1", &Image::random(seed, &[10]));
    }
    let upstream = |registry: &FakeRegistry| {
        format!(
            "tags.ttl = \"0s\"\n[upstreams.\"lab:5000\"]\naddresses = \"{}\"",
            registry.url()
        )
    };
    let daemon = Daemon::start(&upstream(&one), &[]).await;
    let manifest = || async {
        let answer = Request::get("/v2/lab:5000/team/app/manifests/1")
            .send(daemon.listen)
            .await
            .expect("a response");
        answer
            .header("docker-content-digest")
            .expect("a digest")
            .to_owned()
    };
    assert_eq!(manifest().await, Image::random(1, &[10]).root.to_string());
    daemon.configure(&upstream(&two));
    daemon.signal(Signal::HUP);
    daemon.logs("configuration reloaded").await;
    assert_eq!(manifest().await, Image::random(2, &[10]).root.to_string());
}

/// Tests reloads of a configuration that comes from a pipe. A read from a new pipe would hang. A
/// pipe that the start has read is empty, and an empty text would set all defaults.
#[tokio::test]
async fn a_reload_reads_regular_files_only() {
    let mut daemon = Daemon::start("", &[]).await;
    let pipe = daemon.folder().join("pierhead.toml");
    std::fs::remove_file(&pipe).expect("the file exists");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).expect("a pipe");
    daemon.signal(Signal::HUP);
    daemon.logs("the configuration stays as it was").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());

    let mut daemon = Daemon::start("", &["--config", "/dev/stdin"]).await;
    daemon.signal(Signal::HUP);
    daemon.logs("can be read only once").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());
}

/// Tests that defaults of a changed profile take effect only after a restart, like the profile
/// itself.
#[tokio::test]
async fn a_reload_does_not_apply_a_changed_profile_in_part() {
    let nothing = "configuration reloaded: no key changed";
    for (before, after) in [("", "profile = \"small\""), ("profile = \"small\"", "")] {
        let daemon = Daemon::start(before, &[]).await;
        daemon.configure(after);
        daemon.signal(Signal::HUP);
        daemon.logs(nothing).await;
        let log = daemon.log();
        assert!(log.contains("the change needs a restart"), "{log}");
        // The log message has the line number of the key, if the file sets the key.
        let message = match after {
            "" => " profile changed in",
            _ => "pierhead.toml:1) changed in",
        };
        assert!(log.contains(message), "{log}");
    }
}

/// Simulates a file on a hanging disk by a pipe. The hang ends when the returned file is dropped.
async fn hanging(pipe: std::path::PathBuf) -> std::fs::File {
    let open = move || std::fs::OpenOptions::new().write(true).open(pipe);
    let opened = tokio::task::spawn_blocking(open);
    soon("the read", opened)
        .await
        .expect("no panic")
        .expect("a pipe")
}

#[tokio::test]
async fn sigterm_ends_the_daemon_while_a_reload_hangs() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("authorities.pem");
    std::fs::write(&pipe, "").expect("the file is written");
    let mut daemon = Daemon::start_with("", &[], |command| {
        command.env("SSL_CERT_FILE", &pipe);
    })
    .await;
    std::fs::remove_file(&pipe).expect("the file exists");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).expect("a pipe");
    daemon.signal(Signal::HUP);
    let hangs = hanging(pipe).await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());
    assert!(daemon.log().contains("shut down"), "{}", daemon.log());
    drop(hangs);
}

#[tokio::test]
async fn sigterm_ends_the_daemon_while_a_start_hangs() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("authorities.pem");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).expect("a pipe");
    let mut child = start_only(folder.path(), |command| {
        command.env("SSL_CERT_FILE", &pipe);
    });
    let hangs = hanging(pipe).await;
    send_signal(&child, Signal::TERM);
    let ended = soon("the end", child.wait()).await.expect("our child");
    assert_eq!(ended.code(), Some(0));
    drop(hangs);
}

#[tokio::test]
async fn sigterm_waits_for_responses_in_progress() {
    let registry = FakeRegistry::start().await;
    let image = Image::random(3, &[500_000]);
    registry.push("team/app", "1", &image);
    let layer = &image
        .blobs
        .iter()
        .max_by_key(|blob| blob.bytes.len())
        .expect("a layer")
        .digest;
    let gate = Gate::new();
    registry.inject(Fault::GateBody(100_000, gate.clone()).on_blob(layer));
    let mut daemon =
        Daemon::start("", &["--upstream", &format!("lab:5000={}", registry.url())]).await;

    let mut client = Connection::open(daemon.listen).await.expect("a connection");
    let request = Request::get(format!("/v2/lab:5000/team/app/blobs/{layer}"));
    let answer = client.start(&request).await.expect("a head");
    gate.reached(1).await;
    daemon.signal(Signal::TERM);
    daemon.logs("shutting down").await;
    assert_eq!(daemon.get("/readyz").await.status, 503);
    assert_eq!(daemon.get("/livez").await.status, 200);
    gate.release();
    let whole = soon("the whole answer", answer.whole())
        .await
        .expect("a response");
    assert_eq!(
        (whole.status, whole.end, whole.body.len()),
        (200, End::Clean, 500_000)
    );
    drop(client);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());
    assert!(!daemon.ready_file().exists());
}

#[tokio::test]
async fn a_second_signal_aborts_responses() {
    let registry = FakeRegistry::start().await;
    let image = Image::random(4, &[500_000]);
    registry.push("team/app", "1", &image);
    let layer = &image
        .blobs
        .iter()
        .max_by_key(|blob| blob.bytes.len())
        .expect("a layer")
        .digest;
    let gate = Gate::new();
    registry.inject(Fault::GateBody(100_000, gate.clone()).on_blob(layer));
    let mut daemon = Daemon::start(
        "limits.shutdown_grace = \"1h\"",
        &["--upstream", &format!("lab:5000={}", registry.url())],
    )
    .await;

    let mut client = Connection::open(daemon.listen).await.expect("a connection");
    let request = Request::get(format!("/v2/lab:5000/team/app/blobs/{layer}"));
    let answer = client.start(&request).await.expect("a head");
    gate.reached(1).await;
    daemon.signal(Signal::INT);
    daemon.logs("shutting down").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
    // The client must see that the response was aborted.
    assert!(
        soon("the cut", answer.whole())
            .await
            .map_or(true, |answer| answer.end == End::Cut)
    );
}
