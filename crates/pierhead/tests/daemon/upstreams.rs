//! Tests of an upstream with several addresses, and of access rules.

use pierhead_testkit::http::{End, Request, Response};
use pierhead_testkit::images::Image;
use pierhead_testkit::registry::{FakeRegistry, Fault};
use rustix::process::Signal;

use crate::harness::{Daemon, soon};

struct Two {
    mirror: FakeRegistry,
    registry: FakeRegistry,
    daemon: Daemon,
    image: Image,
    config: String,
}

impl Two {
    async fn start() -> Self {
        let (mirror, registry) = (FakeRegistry::start().await, FakeRegistry::start().await);
        let image = Image::random(5, &[300_000]);
        for upstream in [&mirror, &registry] {
            upstream.push("app", "1", &image);
        }
        let config = format!(
            "tags.ttl = \"0s\"\n[upstreams.\"reg.example\"]\naddresses = [{:?}, {:?}]\ncredential_hosts = [\"{}\"]\n",
            mirror.url(),
            registry.url(),
            registry.addr(),
        );
        let daemon = Daemon::start(&config, &[]).await;
        Self {
            mirror,
            registry,
            daemon,
            image,
            config,
        }
    }

    async fn get(&self, path: &str) -> Response {
        let path = format!("/v2/reg.example/app/{path}");
        let request = Request::get(path);
        soon("an answer", request.send(self.daemon.listen))
            .await
            .expect("one")
    }

    fn count_in_log(&self, text: &str) -> usize {
        self.daemon.log().matches(text).count()
    }

    async fn has_metric(&self, line: &str) -> bool {
        let metrics = self.daemon.get("/metrics").await;
        String::from_utf8_lossy(&metrics.body)
            .lines()
            .any(|it| it == line)
    }
}

#[tokio::test]
async fn a_failing_address_is_logged_once_and_clients_get_the_other() {
    let two = Two::start().await;
    let state = |value: u8| {
        let address = two.mirror.addr();
        format!(
            "pierhead_remote_upstream_state{{upstream=\"reg.example\",address=\"{address}\"}} {value}"
        )
    };
    assert!(two.has_metric(&state(0)).await);
    two.mirror.stop().await;
    for _ in 0..12 {
        assert_eq!(two.get("manifests/1").await.status, 200);
    }
    let layer = two.image.blobs[1].digest;
    let blob = two.get(&format!("blobs/{layer}")).await;
    assert!(blob.body == two.image.blobs[1].bytes);
    two.daemon.logs("upstream unhealthy").await;
    assert!(two.has_metric(&state(2)).await);
    // The log names each failing address with the image, until the circuit breaker of the address
    // opens.
    two.daemon
        .logs("another address responded upstream=reg.example image=reg.example/app:1")
        .await;
    let count = two.count_in_log("another address responded");
    assert!(count <= 8, "{}", two.daemon.log());
    two.mirror.restart().await;
    soon("its return", async {
        while two.count_in_log("upstream healthy again after") == 0 {
            assert_eq!(two.get("manifests/1").await.status, 200);
        }
    })
    .await;
    assert!(two.has_metric(&state(0)).await);
    assert_eq!(
        two.count_in_log("upstream unhealthy"),
        1,
        "{}",
        two.daemon.log()
    );
    assert_eq!(two.count_in_log("upstream healthy again after"), 1);
    assert!(!two.mirror.requests().is_empty());
}

/// Tests an address that sends corrupt blobs (bytes that do not match their digest). At most one
/// response is aborted. If the client has not received a byte yet, and at the next request,
/// pierhead fetches the blob from the other address.
#[tokio::test]
async fn a_mirror_with_corrupt_blobs_aborts_at_most_one_pull() {
    let two = Two::start().await;
    two.mirror.inject(Fault::Corrupt(7).on_blobs());
    let layer = two.image.blobs[1].digest;
    let path = format!("blobs/{layer}");
    let first = two.get(&path).await;
    assert!(first.end != End::Clean || first.body == two.image.blobs[1].bytes);
    let second = two.get(&path).await;
    assert_eq!(second.status, 200);
    assert!(second.body == two.image.blobs[1].bytes);
    assert_eq!(two.registry.gets_of(&layer), 1);
}

#[tokio::test]
async fn a_reload_applies_new_access_rules() {
    let two = Two::start().await;
    assert_eq!(two.get("manifests/1").await.status, 200);
    let rules = "access.deny = [\"reg.example/app\"]\n";
    two.daemon.configure(&format!("{rules}{}", two.config));
    two.daemon.signal(Signal::HUP);
    two.daemon.logs("configuration reloaded").await;
    let denied = two.get("manifests/1").await;
    assert_eq!(denied.status, 403);
    let line = "pull refused reference=reg.example/app:1 client=127.0.0.1 status=403";
    two.daemon.logs(line).await;
    // A refused pull causes one log line: a client that gets no manifest requests no blobs.
    let blob = format!("blobs/{}", two.image.blobs[0].digest);
    assert_eq!(two.get(&blob).await.status, 403);
    assert_eq!(two.count_in_log("pull refused"), 1);
    let (code, out, err) = two.daemon.cache(&["warm", "reg.example/app:1"]).await;
    let message = out + &err;
    assert!(
        code != Some(0) && message.contains("access.deny"),
        "{message}"
    );
    two.daemon
        .configure(&format!("access.deny = [\"docker.io/*\"]\n{}", two.config));
    two.daemon.signal(Signal::HUP);
    two.daemon
        .logs("write docker.io/library/* or docker.io/**")
        .await;
    assert_eq!(two.get("manifests/1").await.status, 403, "nothing changed");
}
