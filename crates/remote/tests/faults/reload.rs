//! Tests of metrics, waits after rate limits, cancelled callers, reloads, shared token fetches,
//! content encodings and credential helpers.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pierhead_remote::Spawner;
use pierhead_testkit::metrics::metrics_text;
use pierhead_testkit::registry::{Role, TokenAuth};

use super::*;

fn metrics(client: &Client) -> String {
    metrics_text(|registry| client.register(registry.sub_registry_with_prefix("x")))
}

#[tokio::test]
async fn metrics_count_requests_bytes_and_resumes() {
    let pair = Pair::start().await;
    pair.manifest().await.expect("a manifest");
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    pair.pull(0).await.1.expect("the layer");
    let limited = Fault::Header("ratelimit-remaining", "76;w=21600".to_owned());
    pair.upstream.inject(limited.on_manifests());
    let limit = Fault::Header("ratelimit-limit", "100;w=21600".to_owned());
    pair.upstream.inject(limit.on_manifests());
    pair.upstream
        .inject(Fault::Status(429).on_manifests().times(1));
    pair.manifest().await.expect_err("limited");
    let stranger = "10.0.0.1/a/b:c".parse().expect("a reference");
    let _ = pair
        .client
        .manifest(&stranger, &Validators::default())
        .await;
    let text = metrics(&pair.client);
    for line in [
        r#"x_requests_total{upstream="up.example",kind="manifest",status="2xx"} 1"#,
        r#"x_requests_total{upstream="up.example",kind="manifest",status="429"} 1"#,
        r#"x_requests_total{upstream="up.example",kind="blob",status="2xx"} 2"#,
        r#"x_resumes_total{upstream="up.example"} 1"#,
        r#"x_rate_limit{upstream="up.example"} 100"#,
        r#"x_rate_limit_remaining{upstream="up.example"} 76"#,
        "x_downloads_in_flight 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} in\n{text}");
    }
    assert!(!text.contains("10.0.0.1"), "{text}");
    let received = text
        .lines()
        .find_map(|line| line.strip_prefix(r#"x_received_bytes_total{upstream="up.example"} "#))
        .and_then(|number| number.parse::<usize>().ok());
    assert!(received.is_some_and(|bytes| bytes >= SIZE), "{text}");
}

#[tokio::test]
async fn each_result_of_a_lookup_has_a_series_before_its_first_event() {
    let pair = Pair::start().await;
    let text = metrics_text(|registry| {
        pair.client
            .register_dns(registry.sub_registry_with_prefix("x"))
    });
    for result in ["found", "not_found", "failed", "timeout", "busy"] {
        let line = format!("x_lookups_total{{result=\"{result}\"}} 0\n");
        assert!(text.contains(&line), "{line} in\n{text}");
    }
}

/// A response 429 for a manifest is returned without a wait, so that the proxy can serve a stale
/// copy of the manifest.
#[tokio::test]
async fn a_429_for_a_manifest_returns_at_once_and_a_429_for_a_blob_waits() {
    let pair = Pair::start().await;
    let limited = || Fault::RetryAfter(429, "1".to_owned());
    let injected = pair.upstream.inject(limited().on_manifests());
    let fetched = pair.manifest().await;
    let second = Some(Duration::from_secs(1));
    assert!(
        matches!(fetched, Err(Error::RateLimited { retry_after, .. }) if retry_after == second),
        "{fetched:?}"
    );
    assert_eq!(injected.hits(), 1);

    pair.upstream.inject(limited().on_blobs().times(1));
    pair.assert_pull_in(2).await;
    let patient = Fault::RetryAfter(429, "3600".to_owned());
    let injected = pair.upstream.inject(patient.on_blobs());
    let ended = pair.pull(0).await.1;
    assert!(matches!(ended, Err(Error::RateLimited { .. })), "{ended:?}");
    assert_eq!(injected.hits(), 1);
}

/// The caller cancels `next` many times, also during a resume. No byte is lost or repeated.
#[tokio::test]
async fn cancelling_next_loses_no_bytes() {
    // With a bandwidth limit, `next` also waits until the limit allows further bytes.
    let slowly =
        |config: &mut Config, _: &mut Upstream| config.upstream_bandwidth = Some(3_000_000);
    let pair = Pair::with(FakeRegistry::builder(), slowly).await;
    let gate = pierhead_testkit::registry::Gate::new();
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    pair.upstream
        .inject(Fault::GateHead(gate.clone()).on_blobs().skip(1).times(1));
    let mut stream = pair.stream().await;
    let mut received = Vec::new();
    let pulled = within_timeout(async {
        loop {
            // The future is polled once, then dropped.
            let step = tokio::select! {
                biased;
                step = stream.next() => step,
                () = tokio::task::yield_now() => {
                    if gate.arrived() > 0 {
                        gate.release();
                    }
                    continue;
                }
            };
            match step {
                Some(bytes) => received.extend_from_slice(&bytes.expect("bytes")),
                None => break,
            }
        }
    });
    pulled.await;
    assert_eq!(received, pair.image.blobs[1].bytes);
    assert_eq!(
        pair.upstream.gets_of(&pair.layer()),
        2,
        "one resume, not one per cancelled call"
    );
}

#[tokio::test]
async fn a_reload_affects_new_requests_and_not_running_ones() {
    let old = Pair::start().await;
    let new = FakeRegistry::start().await;
    new.push(REPOSITORY, "latest", &Image::random(8, &[10]));
    let gate = pierhead_testkit::registry::Gate::new();
    old.upstream
        .inject(Fault::GateBody(1000, gate.clone()).on_blobs());
    let mut stream = old.stream().await;
    let upstream = Upstream {
        url: new.url(),
        ..Upstream::default()
    };
    let config = Config {
        upstreams: [(name(), upstream)].into(),
        ..Config::default()
    };
    old.client.reload(config).expect("a good configuration");
    old.manifest().await.expect("a manifest");
    assert_eq!(new.requests().len(), 1);
    let mut wrong = Config::default();
    wrong.upstreams.insert(name(), Upstream::default());
    old.client.reload(wrong).expect_err("no URL");
    old.manifest().await.expect("the last good configuration");
    gate.release();
    let mut received = 0;
    while let Some(bytes) = within_timeout(stream.next()).await {
        received += bytes.expect("bytes").len();
    }
    assert_eq!(received, SIZE);
}

#[tokio::test]
async fn the_spawner_of_the_first_configuration_starts_each_connection() {
    let started = Arc::new(AtomicUsize::new(0));
    let counter = started.clone();
    let old = Pair::with(FakeRegistry::builder(), |config, _| {
        config.spawner = Spawner::new(move |task| {
            counter.fetch_add(1, Ordering::Relaxed);
            drop(tokio::spawn(task));
        });
    })
    .await;
    old.manifest().await.expect("a manifest");
    let before = started.load(Ordering::Relaxed);
    assert!(before > 0);
    let new = FakeRegistry::start().await;
    new.push(REPOSITORY, "latest", &old.image);
    let upstream = Upstream {
        url: new.url(),
        ..Upstream::default()
    };
    let config = Config {
        upstreams: [(name(), upstream)].into(),
        ..Config::default()
    };
    old.client.reload(config).expect("a good configuration");
    old.manifest().await.expect("a manifest");
    assert!(started.load(Ordering::Relaxed) > before);
}

#[tokio::test]
async fn concurrent_requests_share_one_token_fetch() {
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.manifest().await.expect("a manifest");
    pair.upstream.expire_tokens();
    let all = (0..10).map(|_| pair.manifest());
    for fetched in futures_util::future::join_all(all).await {
        fetched.expect("a manifest");
    }
    let tokens = pair.upstream.count(|request| request.role == Role::Tokens);
    assert_eq!(tokens, 2);
}

#[tokio::test]
async fn a_content_encoded_response_is_refused() {
    let pair = Pair::start().await;
    let encoded = || Fault::Header("content-encoding", "gzip".to_owned());
    pair.upstream.inject(encoded().on_manifests());
    pair.upstream.inject(encoded().on_blobs());
    let refused = |error: Error| matches!(error, Error::Protocol { .. });
    assert!(pair.manifest().await.is_err_and(refused));
    assert!(pair.pull(0).await.1.is_err_and(refused));
}

/// The helper first returns an old password. After the upstream refuses this password, the helper
/// runs again.
#[tokio::test]
async fn a_helper_runs_again_when_its_credentials_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("docker-credential-test");
    let script = "#!/bin/sh\ncd \"${0%/*}\" || exit 1\n\
        if [ -e requested ]; then s=right; else s=old; : > requested; fi\n\
        echo \"{\\\"Username\\\":\\\"ann\\\",\\\"Secret\\\":\\\"$s\\\"}\"\n";
    std::fs::write(&program, script).expect("written");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, executable).expect("set");
    let auth = TokenAuth {
        users: vec![("ann".to_owned(), "right".to_owned())],
        private: vec![REPOSITORY.to_owned()],
        anonymous: false,
        ..TokenAuth::default()
    };
    let auth = pierhead_testkit::registry::Auth::Token(auth);
    let builder = FakeRegistry::builder().with(|settings| settings.auth = auth);
    let pair = Pair::with(builder, |config, _| {
        config.helper_folders = vec![folder.path().to_owned()];
        // The helper comes from a Docker `config.json`, and not from the upstream's own
        // configuration.
        let helper = Credentials::Helper("test".to_owned());
        config.credentials.insert(name(), helper);
    })
    .await;
    pair.manifest().await.expect("a manifest");
    let tokens = pair.upstream.count(|request| request.role == Role::Tokens);
    assert_eq!(tokens, 2, "one refusal, then success");
}
