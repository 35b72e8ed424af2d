//! Tests of the fake registry without faults: it implements the OCI Distribution protocol.

use pierhead_oci::MediaType;
use serde_json::json;

use super::*;
use crate::http::{self, End};
use crate::images::{digest_of, random_bytes};

#[tokio::test]
async fn pushed_images_are_served() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let addr = registry.addr();

    assert_eq!(http::get(addr, "/v2/").await.status, 200);
    let manifest = http::get(addr, &manifest_path("latest")).await;
    assert_eq!(
        manifest.header("content-type"),
        Some(MediaType::OCI_MANIFEST)
    );
    let root = manifest
        .header("docker-content-digest")
        .map(str::to_owned)
        .expect("a digest");
    assert_eq!(digest_of(&manifest.body).to_string(), root);
    assert_eq!(
        manifest.header("etag"),
        Some(format!("\"{root}\"").as_str())
    );
    assert_eq!(
        http::get(addr, &manifest_path(&root)).await.body,
        manifest.body
    );

    let head = http::head(addr, &manifest_path("latest")).await;
    assert_eq!(head.headers, manifest.headers);
    assert!(head.body.is_empty());

    let blob = http::get(addr, &blob_path(&digest)).await;
    assert_eq!((blob.status, blob.end), (200, End::Clean));
    assert_eq!(digest_of(&blob.body), digest);
    assert_eq!(
        (registry.gets_of(&digest), registry.heads_of(&digest)),
        (1, 0)
    );
    for absent in [
        blob_path(&digest_of(b"absent")),
        manifest_path("absent"),
        "/v2/absent/tags/list".to_owned(),
    ] {
        assert_eq!(http::get(addr, &absent).await.status, 404, "{absent}");
    }
    assert_eq!(
        Ask::new("POST", blob_path(&digest))
            .send(addr)
            .await
            .expect("an answer")
            .status,
        405
    );
}

#[tokio::test]
async fn a_current_etag_gets_a_304() {
    let (registry, _) = with_layer(FakeRegistry::builder()).await;
    let first = ask(&registry, &manifest_path("latest"), &[]).await;
    let etag = first.header("etag").expect("an etag");
    let again = ask(
        &registry,
        &manifest_path("latest"),
        &[("if-none-match", etag)],
    )
    .await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(
        again.header("docker-content-digest"),
        first.header("docker-content-digest")
    );
    let changed = ask(
        &registry,
        &manifest_path("latest"),
        &[("if-none-match", "\"other\"")],
    )
    .await;
    assert_eq!(changed.status, 200);
}

#[tokio::test]
async fn accept_headers_in_several_lines_count() {
    let (registry, _) = with_layer(FakeRegistry::builder()).await;
    let path = manifest_path("latest");
    let docker = ("accept", MediaType::DOCKER_MANIFEST);
    assert_eq!(ask(&registry, &path, &[docker]).await.status, 404);
    assert_eq!(
        ask(
            &registry,
            &path,
            &[docker, ("accept", MediaType::OCI_MANIFEST)]
        )
        .await
        .status,
        200
    );
    assert_eq!(
        ask(&registry, &path, &[("accept", "text/html, */*;q=0.1")])
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn ranges_select_bytes_of_a_blob() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let whole = ask(&registry, &blob_path(&digest), &[]).await.body;
    let path = blob_path(&digest);
    let cases = [
        ("bytes=0-0", 0, 1),
        ("bytes=299000-", 299_000, SIZE),
        ("bytes=10-19", 10, 20),
        ("bytes=299990-999999", 299_990, SIZE),
        ("bytes=-5", SIZE - 5, SIZE),
    ];
    for (range, start, end) in cases {
        let part = ask(&registry, &path, &[("range", range)]).await;
        assert_eq!(part.status, 206, "{range}");
        assert_eq!(part.body, whole.slice(start..end), "{range}");
        let text = format!("bytes {start}-{}/{SIZE}", end - 1);
        assert_eq!(part.header("content-range"), Some(text.as_str()));
    }
    let beyond = ask(&registry, &path, &[("range", "bytes=300000-")]).await;
    assert_eq!(
        (beyond.status, beyond.header("content-range")),
        (416, Some("bytes */300000"))
    );
    assert_eq!(
        ask(&registry, &path, &[("range", "lines=1-2")])
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn a_blob_in_a_file_is_served_like_one_in_memory() {
    let registry = FakeRegistry::start().await;
    let bytes = random_bytes(3, 200_001);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &bytes).expect("written");
    let digest = digest_of(&bytes);
    registry.put_blob_file(REPOSITORY, digest, file.path());
    assert_eq!(ask(&registry, &blob_path(&digest), &[]).await.body, bytes);
    let part = ask(
        &registry,
        &blob_path(&digest),
        &[("range", "bytes=70000-140000")],
    )
    .await;
    assert_eq!(part.body, bytes.slice(70_000..=140_000));
}

#[test]
fn a_layout_on_disk_is_served_from_background_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = Image::multi_arch(2, &["amd64", "arm64"]);
    let blobs = folder.path().join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("a folder");
    let contents = image.blobs.iter().map(|blob| (blob.digest, &blob.bytes));
    for (digest, bytes) in contents.chain(
        image
            .documents
            .iter()
            .map(|document| (document.digest, &document.bytes)),
    ) {
        std::fs::write(blobs.join(digest.hex()), bytes).expect("written");
    }
    let mut entry = image.root_document().descriptor();
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "library/thing:1.0" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] });
    std::fs::write(folder.path().join("index.json"), index.to_string()).expect("written");

    let registry = FakeRegistry::builder().start_in_background();
    assert_eq!(
        registry.push_layout(folder.path()).expect("a layout"),
        ["library/thing:1.0"]
    );
    let root = registry.wait(async |registry| ask(registry, &manifest_path("1.0"), &[]).await);
    assert_eq!(
        (digest_of(&root.body), root.header("content-type")),
        (image.root, Some(MediaType::OCI_INDEX))
    );
    for document in &image.documents {
        let path = manifest_path(&document.digest.to_string());
        assert_eq!(
            registry
                .wait(async |registry| ask(registry, &path, &[]).await)
                .body,
            document.bytes
        );
    }
    for blob in &image.blobs {
        assert_eq!(
            registry
                .wait(async |registry| ask(registry, &blob_path(&blob.digest), &[]).await)
                .body,
            blob.bytes
        );
    }
    registry.stop();
    let refused = registry.wait(async |registry| breaks(registry, "/v2/").await);
    assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
    registry.restart();
    assert_eq!(
        registry
            .wait(async |registry| ask(registry, "/v2/", &[]).await)
            .status,
        200
    );
}

#[tokio::test]
async fn tags_come_in_pages_of_the_configured_size() {
    let (registry, _) = with_layer(FakeRegistry::builder()).await;
    let root = digest_of(b"any");
    for tag in ["c", "a", "b", "d"] {
        registry.tag(REPOSITORY, tag, root);
    }
    let path = format!("/v2/{REPOSITORY}/tags/list");
    let all = ask(&registry, &path, &[]).await;
    assert_eq!(
        all.json(),
        json!({ "name": REPOSITORY, "tags": ["a", "b", "c", "d", "latest"] })
    );
    assert_eq!(all.header("link"), None);

    registry.configure(|settings| settings.tags_page = Some(2));
    let mut seen = Vec::new();
    let mut next = format!("{path}?n=100");
    loop {
        let page = ask(&registry, &next, &[]).await;
        seen.push(page.json()["tags"].clone());
        assert!(seen.len() < 10, "too many pages");
        let Some(link) = page.header("link") else {
            break;
        };
        next = link
            .trim_start_matches('<')
            .split_once('>')
            .expect("a link")
            .0
            .to_owned();
        assert!(link.ends_with("; rel=\"next\""));
    }
    assert_eq!(
        seen,
        [json!(["a", "b"]), json!(["c", "d"]), json!(["latest"])]
    );
}

#[tokio::test]
async fn referrers_come_from_the_api_or_the_tag() {
    let (registry, _) = with_layer(FakeRegistry::builder()).await;
    let subject = digest_of(b"subject");
    for kind in ["application/one", "application/two"] {
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MediaType::OCI_MANIFEST, "artifactType": kind,
            "config": { "mediaType": "application/vnd.oci.empty.v1+json" },
            "subject": { "mediaType": MediaType::OCI_MANIFEST, "digest": subject.to_string(), "size": 7 },
        });
        registry.put_manifest(REPOSITORY, MediaType::OCI_MANIFEST, manifest.to_string());
    }
    let api = format!("/v2/{REPOSITORY}/referrers/{subject}");
    let tag = manifest_path(&subject.to_string().replace(':', "-"));

    let all = ask(&registry, &api, &[]).await;
    assert_eq!(all.json()["manifests"].as_array().map(Vec::len), Some(2));
    let one = ask(
        &registry,
        &format!("{api}?artifactType=application%2Fone"),
        &[],
    )
    .await;
    assert_eq!(
        one.json()["manifests"][0]["artifactType"],
        "application/one"
    );
    assert_eq!(one.json()["manifests"].as_array().map(Vec::len), Some(1));
    assert_eq!(one.header("oci-filters-applied"), Some("artifactType"));
    assert_eq!(ask(&registry, &tag, &[]).await.status, 404);
    let none = ask(
        &registry,
        &format!("/v2/{REPOSITORY}/referrers/{}", digest_of(b"other")),
        &[],
    )
    .await;
    assert_eq!(
        (none.status, none.json()["manifests"].clone()),
        (200, json!([]))
    );

    registry.configure(|settings| settings.referrers_api = false);
    assert_eq!(ask(&registry, &api, &[]).await.status, 404);
    assert_eq!(
        ask(&registry, &tag, &[]).await.json()["manifests"],
        all.json()["manifests"]
    );
}

#[tokio::test]
async fn manifests_are_counted_against_the_rate_limit() {
    let (registry, _) = with_layer(FakeRegistry::builder()).await;
    registry.configure(|settings| {
        settings.rate_limit = Some(RateLimit {
            limit: 100,
            remaining: 1,
            window: 21_600,
        })
    });
    let path = manifest_path("latest");
    let head = http::head(registry.addr(), &path).await;
    assert_eq!(head.header("ratelimit-remaining"), Some("1;w=21600"));
    let first = ask(&registry, &path, &[]).await;
    assert_eq!(
        (first.status, first.header("ratelimit-limit")),
        (200, Some("100;w=21600"))
    );
    assert_eq!(first.header("ratelimit-remaining"), Some("0;w=21600"));
    assert_eq!(ask(&registry, &path, &[]).await.status, 429);
}

#[tokio::test]
async fn a_restart_uses_the_same_port() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let mut keep_alive = open(&registry).await;
    assert_eq!(
        keep_alive
            .exchange(&Ask::get("/v2/"))
            .await
            .expect("an answer")
            .status,
        200
    );
    for _ in 0..3 {
        registry.stop().await;
        assert!(
            keep_alive.exchange(&Ask::get("/v2/")).await.is_err(),
            "connections are closed too"
        );
        assert_eq!(
            breaks(&registry, "/v2/").await,
            std::io::ErrorKind::ConnectionRefused
        );
        registry.restart().await;
        assert_eq!(ask(&registry, &blob_path(&digest), &[]).await.status, 200);
    }
}

#[tokio::test]
async fn tls_clients_must_trust_the_authority() {
    let (registry, digest) = with_layer(FakeRegistry::builder().tls()).await;
    assert!(registry.url().starts_with("https://"));
    for name in ["localhost", "127.0.0.1"] {
        let mut connection = Connection::open_tls(registry.addr(), name, registry.ca_pem())
            .await
            .expect(name);
        let blob = connection
            .exchange(&Ask::get(blob_path(&digest)))
            .await
            .expect("an answer");
        assert_eq!((digest_of(&blob.body), blob.end), (digest, End::Clean));
    }
    let stranger = Authority::new();
    assert!(
        Connection::open_tls(registry.addr(), "localhost", stranger.pem())
            .await
            .is_err()
    );
    let other = FakeRegistry::builder()
        .tls_for(&["elsewhere.example"])
        .start()
        .await;
    assert!(
        Connection::open_tls(other.addr(), "localhost", other.ca_pem())
            .await
            .is_err()
    );
    let expired = FakeRegistry::builder().tls().tls_expired().start().await;
    let refused = Connection::open_tls(expired.addr(), "localhost", expired.ca_pem()).await;
    let Err(error) = refused else {
        panic!("an expired certificate was accepted");
    };
    assert!(error.to_string().contains("xpired"), "{error}");
}

#[tokio::test]
async fn the_log_has_headers_connections_and_bytes() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    let mut keep_alive = open(&registry).await;
    for path in [
        "/v2/".to_owned(),
        format!("{}?ns=docker.io&q=a%20b", blob_path(&digest)),
    ] {
        keep_alive
            .exchange(&Ask::get(path).header("x-one", "1"))
            .await
            .expect("an answer");
    }
    ask(&registry, "/v2/", &[]).await;
    registry
        .wait_for(|requests| requests.iter().filter(|request| request.done).count() == 3)
        .await;
    let requests = registry.requests();
    assert_eq!(requests[1].path, blob_path(&digest));
    assert_eq!(requests[1].param("q").as_deref(), Some("a b"));
    assert_eq!(requests[1].header("X-One"), Some("1"));
    assert_eq!(
        (requests[1].status, requests[1].sent),
        (Some(200), SIZE as u64)
    );
    assert_eq!(requests[0].connection, requests[1].connection);
    assert_ne!(requests[0].connection, requests[2].connection);
    registry.clear_requests();
    assert_eq!(registry.requests().len(), 0);
}

/// The test checks only the maximum rate, so that a slow machine does not fail it.
#[tokio::test]
async fn all_bodies_share_the_bandwidth() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.configure(|settings| settings.bandwidth = Some(3_000_000));
    let began = tokio::time::Instant::now();
    let path = blob_path(&digest);
    let (one, two) = tokio::join!(ask(&registry, &path, &[]), ask(&registry, &path, &[]));
    assert_eq!((one.body.len(), two.body.len()), (SIZE, SIZE));
    // At this rate, the two bodies together take 0.2 s. The last write may finish early.
    assert!(
        began.elapsed() > std::time::Duration::from_millis(120),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(registry.peak_blobs_in_flight(), 2);
}
