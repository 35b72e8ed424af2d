//! Tests of the media types of manifests: a document is served as a manifest only if it is a
//! manifest, and with the media type that the document states.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use common::Fixture;
use pierhead_oci::{Digest, MediaType};
use pierhead_testkit::http::End;
use pierhead_testkit::registry::Fault;

const CONFIG: &str = r#""config":{"mediaType":"a/b","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}"#;

fn image(own: Option<&str>) -> String {
    let own = own.map_or(String::new(), |own| format!(r#""mediaType":"{own}","#));
    format!(r#"{{"schemaVersion":2,{own}{CONFIG},"layers":[]}}"#)
}

/// Puts a manifest into the registry, which sends the manifest with the type `sent`.
fn put(fixture: &Fixture, repository: &str, sent: &str, text: &str) -> Digest {
    let header = Fault::Header("content-type", sent.to_owned());
    fixture
        .upstream
        .inject(header.on(format!("/v2/{repository}/manifests/*")));
    fixture
        .upstream
        .put_manifest(repository, MediaType::OCI_MANIFEST, text.to_owned())
}

fn path(repository: &str, digest: &Digest) -> String {
    format!("/v2/{repository}/manifests/{digest}")
}

#[tokio::test]
async fn a_registry_does_not_choose_the_type_of_another_registry_s_content() {
    let fixture = Fixture::start().await;
    let own = image(Some(MediaType::OCI_MANIFEST));
    let none = image(None);
    for (text, wrong) in [
        (&own, "text/html"),
        (&own, MediaType::DOCKER_MANIFEST),
        (&own, MediaType::OCI_INDEX),
        (&none, "text/html"),
        (&none, "application/json"),
    ] {
        // In each case, the content must be new to the cache.
        let text = format!("{text}{}", " ".repeat(wrong.len()));
        fixture.upstream.clear_faults();
        put(&fixture, "evil", wrong, &text);
        let digest = put(&fixture, "good", MediaType::OCI_MANIFEST, &text);
        for repository in ["evil", "good", "good"] {
            let got = fixture.get(&path(repository, &digest)).await;
            let outcome = (got.status, got.header("content-type"));
            assert_eq!(
                outcome,
                (200, Some(MediaType::OCI_MANIFEST)),
                "{wrong} {text}"
            );
            assert_eq!(got.body, text);
        }
    }
}

#[tokio::test]
async fn other_documents_are_not_served_as_manifests() {
    let fixture = Fixture::start().await;
    let index_of_image = image(None);
    let both = format!(r#"{{"schemaVersion":2,{CONFIG},"manifests":[]}}"#);
    let empty = format!(
        r#"{{"schemaVersion":2,"mediaType":"{}"}}"#,
        MediaType::OCI_MANIFEST
    );
    for (sent, text) in [
        (MediaType::OCI_MANIFEST, "{}"),
        (MediaType::OCI_MANIFEST, "[2,\"application/x\"]"),
        (MediaType::OCI_MANIFEST, "junk"),
        (
            MediaType::OCI_MANIFEST,
            r#"{"architecture":"amd64","os":"linux"}"#,
        ),
        (
            "application/json",
            r#"{"architecture":"amd64","os":"linux"}"#,
        ),
        ("text/html", r#"{"name":"a","tags":[]}"#),
        ("text/plain", r#"{"schemaVersion":2,"mediaType":""#),
        (MediaType::OCI_INDEX, &index_of_image),
        (MediaType::OCI_MANIFEST, &both),
        ("text/plain", &empty),
    ] {
        fixture.upstream.clear_faults();
        let digest = put(&fixture, "app", sent, text);
        fixture.upstream.tag("app", "1", digest);
        for path in [path("app", &digest), "/v2/app/manifests/1".to_owned()] {
            let got = fixture.get(&path).await;
            assert_eq!((got.status, got.end), (503, End::Clean), "{sent} {text}");
        }
        assert!(!fixture.cache.contains(&digest), "{sent} {text}");
    }
}

#[tokio::test]
async fn other_kinds_of_manifests_are_served() {
    let fixture = Fixture::start().await;
    let schema_1 = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    let artifact = "application/vnd.oci.artifact.manifest.v1+json";
    let own = format!(r#"{{"mediaType":"{artifact}","blobs":[]}}"#);
    for (sent, text, expected) in [
        (schema_1, r#"{"schemaVersion":1,"name":"app"}"#, schema_1),
        ("application/json", own.as_str(), artifact),
    ] {
        fixture.upstream.clear_faults();
        let digest = put(&fixture, "app", sent, text);
        for _ in 0..2 {
            let got = fixture.get(&path("app", &digest)).await;
            assert_eq!(
                (got.status, got.header("content-type")),
                (200, Some(expected))
            );
        }
    }
}

#[tokio::test]
async fn a_cached_tag_list_is_not_served_as_a_manifest() {
    let fixture = Fixture::start().await;
    fixture.push(1, &[10]);
    assert_eq!(fixture.get("/v2/app/tags/list").await.status, 200);
    let listed = fixture.cache.list(None, 100);
    let of_tags = |entry: &&pierhead_cache::BlobStat| {
        entry
            .media_type
            .as_ref()
            .is_some_and(|media_type| media_type.as_str() == "application/json")
    };
    let list = listed.iter().find(of_tags).unwrap().digest;
    assert_eq!(fixture.get(&path("app", &list)).await.status, 404);
}
