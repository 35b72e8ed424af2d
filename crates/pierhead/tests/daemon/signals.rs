//! SIGHUP, SIGTERM, SIGINT.

use pierhead_testkit::http::{Connection, End, Request};
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::{FakeRegistry, Fault, Gate};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::harness::{Daemon, soon};

async fn capacity(daemon: &Daemon) -> u64 {
    daemon.get("/v1/stat").await.json()["capacity"]
        .as_u64()
        .expect("a number")
}

#[tokio::test]
async fn hangup_takes_a_new_configuration_and_keeps_connections() {
    let daemon = Daemon::start("cache.size = \"1GiB\"", &[]).await;
    let mut client = Connection::open(daemon.listen).await.expect("a connection");
    let ping = Request::get("/v2/");
    assert_eq!(client.exchange(&ping).await.expect("an answer").status, 200);

    daemon.configure("cache.size = \"2GiB\"\n[log]\nlevel = \"debug\"");
    daemon.signal(Signal::HUP);
    daemon.logs("configuration read again").await;
    assert_eq!(capacity(&daemon).await, 2 << 30);

    // A mistake changes nothing, not even what stands before it.
    daemon.configure("cache.size = \"3GiB\"\ntags.freshnes = \"1s\"");
    daemon.signal(Signal::HUP);
    daemon
        .logs("pierhead.toml:2: unknown key \"tags.freshnes\": did you mean \"tags.freshness\"?")
        .await;
    assert_eq!(capacity(&daemon).await, 2 << 30);

    // What cannot change is named; the rest changes.
    daemon.configure("cache.size = \"4GiB\"\nlimits.threads = 7");
    daemon.signal(Signal::HUP);
    daemon.logs("limits.threads changed").await;
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
async fn hangup_takes_new_upstreams() {
    let (one, two) = (FakeRegistry::start().await, FakeRegistry::start().await);
    for (registry, seed) in [(&one, 1), (&two, 2)] {
        registry.push("team/app", "1", &Image::random(seed, &[10]));
    }
    let upstream = |registry: &FakeRegistry| {
        format!(
            "tags.freshness = \"0s\"\n[upstreams.\"lab:5000\"]\nurl = \"{}\"",
            registry.url()
        )
    };
    let daemon = Daemon::start(&upstream(&one), &[]).await;
    let manifest = || async {
        let answer = Request::get("/v2/lab:5000/team/app/manifests/1")
            .send(daemon.listen)
            .await
            .expect("an answer");
        answer
            .header("docker-content-digest")
            .expect("a digest")
            .to_owned()
    };
    assert_eq!(manifest().await, Image::random(1, &[10]).root.to_string());
    daemon.configure(&upstream(&two));
    daemon.signal(Signal::HUP);
    daemon.logs("configuration read again").await;
    assert_eq!(manifest().await, Image::random(2, &[10]).root.to_string());
}

/// A pipe in place of the file would be waited for, and one that was read at the start is empty now,
/// which would be all defaults.
#[tokio::test]
async fn hangup_reads_files_alone() {
    let mut daemon = Daemon::start("", &[]).await;
    let pipe = daemon.folder().join("pierhead.toml");
    std::fs::remove_file(&pipe).expect("it is there");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).expect("a pipe");
    daemon.signal(Signal::HUP);
    daemon.logs("the configuration was not changed").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());

    let mut daemon = Daemon::start("", &["--config", "/dev/stdin"]).await;
    daemon.signal(Signal::HUP);
    daemon.logs("can be read only once").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());
}

#[tokio::test]
async fn terminate_lets_answers_finish() {
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
    daemon.logs("draining").await;
    assert_eq!(daemon.get("/readyz").await.status, 503);
    assert_eq!(daemon.get("/livez").await.status, 200);
    gate.release();
    let whole = soon("the whole answer", answer.whole())
        .await
        .expect("an answer");
    assert_eq!(
        (whole.status, whole.end, whole.body.len()),
        (200, End::Clean, 500_000)
    );
    drop(client);
    assert_eq!(daemon.ended().await.code(), Some(0), "{}", daemon.log());
    assert!(!daemon.ready_file().exists());
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
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
        "limits.drain = \"1h\"",
        &["--upstream", &format!("lab:5000={}", registry.url())],
    )
    .await;

    let mut client = Connection::open(daemon.listen).await.expect("a connection");
    let request = Request::get(format!("/v2/lab:5000/team/app/blobs/{layer}"));
    let answer = client.start(&request).await.expect("a head");
    gate.reached(1).await;
    daemon.signal(Signal::INT);
    daemon.logs("draining").await;
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended().await.code(), Some(1), "{}", daemon.log());
    // Never a short body that looks whole.
    assert!(
        soon("the cut", answer.whole())
            .await
            .map_or(true, |answer| answer.end == End::Cut)
    );
}
