//! Tests of fetching manifests, tag lists and referrers lists from a faulty registry: digests, size
//! limits, statuses, pages.

use pierhead_oci::{Digest, Manifest, MediaType};
use pierhead_testkit::images::{Document, digest_of};
use pierhead_testkit::registry::RateLimit;
use serde_json::{Value, json};

use super::*;

/// Returns the bytes, type, digest and ETag of a fetched document.
fn document(fetched: Result<DocumentResponse, Error>) -> (Vec<u8>, String, Digest, Option<String>) {
    match fetched {
        Ok(DocumentResponse::Document {
            bytes,
            media_type,
            digest,
            etag,
            ..
        }) => (bytes.to_vec(), media_type.as_str().to_owned(), digest, etag),
        other => panic!("no document: {other:?}"),
    }
}

#[tokio::test]
async fn a_manifest_is_returned_unchanged_with_its_type_and_digest() {
    let pair = Pair::start().await;
    let root = pair.image.root_document();
    for target in [":latest".to_owned(), format!("@{}", root.digest)] {
        let fetched = within_timeout(
            pair.client
                .manifest(&reference(&target), &Validators::default()),
        )
        .await;
        let (bytes, media_type, digest, _) = document(fetched);
        assert_eq!(
            (bytes, media_type, digest),
            (root.bytes.to_vec(), root.media_type.clone(), root.digest)
        );
    }
    let request = &pair.upstream.requests()[0];
    let accept: Vec<_> = request
        .headers
        .get_all("accept")
        .iter()
        .map(|value| value.to_str().expect("text"))
        .collect();
    for media_type in [
        MediaType::OCI_MANIFEST,
        MediaType::OCI_INDEX,
        MediaType::DOCKER_MANIFEST,
        MediaType::DOCKER_LIST,
    ] {
        assert!(
            accept.iter().any(|line| line.contains(media_type)),
            "{accept:?}"
        );
    }
}

#[tokio::test]
async fn a_current_document_is_not_sent_again() {
    let pair = Pair::start().await;
    let (_, _, digest, etag) = document(pair.manifest().await);
    pair.upstream.clear_requests();
    let known = Validators {
        digest: Some(digest),
        etag,
    };
    let again = within_timeout(pair.client.manifest(&reference(":latest"), &known)).await;
    assert!(
        matches!(again, Ok(DocumentResponse::NotModified { .. })),
        "{again:?}"
    );
    assert_eq!(
        pair.upstream
            .requests()
            .iter()
            .map(|request| request.sent)
            .sum::<u64>(),
        0
    );

    let moved = Image::random(8, &[10]);
    pair.upstream.push(REPOSITORY, "latest", &moved);
    let changed = within_timeout(pair.client.manifest(&reference(":latest"), &known)).await;
    assert_eq!(document(changed).2, moved.root);
}

#[tokio::test]
async fn the_digest_is_computed_from_the_bytes() {
    let pair = Pair::start().await;
    let root = pair.image.root;
    pair.upstream.inject(
        Fault::WithoutHeader("docker-content-digest")
            .on_manifests()
            .times(1),
    );
    assert_eq!(document(pair.manifest().await).2, root);

    pair.upstream.inject(Fault::Corrupt(5).on_manifests());
    let by_digest = within_timeout(
        pair.client
            .manifest(&reference(&format!("@{root}")), &Validators::default()),
    )
    .await;
    assert!(
        by_digest.is_err_and(|error| error.is_retryable()),
        "other contents under this digest"
    );
}

/// A captive portal (a network that requires a login) responds to every request with its login
/// page.
#[tokio::test]
async fn an_html_page_is_not_a_manifest() {
    for page in ["<html>Log in</html>", "", "[]", "{\"schemaVersion\":2"] {
        let pair = Pair::start().await;
        let without_digest = Fault::WithoutHeader("docker-content-digest");
        pair.upstream.inject(without_digest.on_manifests());
        pair.upstream
            .inject(Fault::Replace(page.into()).on_manifests());
        let fetched = pair.manifest().await;
        assert!(fetched.is_err_and(|error| error.is_retryable()), "{page}");
    }
}

#[tokio::test]
async fn a_truncated_or_huge_manifest_is_an_error() {
    let faults = [
        Fault::CutBody(10),
        Fault::LengthTooLong(10),
        Fault::HangBody(10),
        Fault::Pad(Manifest::MAX_SIZE as u64),
        Fault::HangHead,
        Fault::Garbage,
        Fault::Reset,
        Fault::Status(500),
        Fault::RedirectLoop,
    ];
    for_each_fault(faults, async |fault| {
        let pair = Pair::start().await;
        let message = format!("{fault:?}");
        pair.upstream.inject(fault.on_manifests());
        let fetched = pair.manifest().await;
        assert!(
            fetched.is_err_and(|error| error.is_retryable()),
            "{message}"
        );
        assert!(pair.upstream.requests().len() < 20, "{message}");
    })
    .await;
}

#[tokio::test]
async fn an_endless_body_ends_at_the_size_limit() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::Pad(1 << 40).on_manifests());
    pair.upstream.inject(Fault::Chunked.on_manifests());
    assert!(pair.manifest().await.is_err());
    // The registry may send more bytes than the limit, because socket buffers hold some bytes.
    assert!(
        pair.upstream
            .requests()
            .iter()
            .all(|request| request.sent < 24 << 20)
    );
}

#[tokio::test]
async fn the_size_of_headers_is_bounded() {
    let pair = Pair::start().await;
    pair.upstream
        .inject(Fault::HugeHeaders(1 << 20).on_manifests());
    assert!(pair.manifest().await.is_err());
}

#[tokio::test]
async fn each_status_has_its_error() {
    let pair = Pair::start().await;
    let fetch = async |fault: Fault| {
        pair.upstream.clear_faults();
        pair.upstream.inject(fault.on_manifests());
        pair.manifest().await.expect_err("an error")
    };
    let error = fetch(Fault::Status(404)).await;
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    for status in [401, 403] {
        let error = fetch(Fault::Status(status)).await;
        assert!(matches!(error, Error::Denied { .. }), "{error}");
    }
    let error = fetch(Fault::Status(429)).await;
    assert!(
        matches!(
            error,
            Error::RateLimited {
                retry_after: None,
                ..
            }
        ),
        "{error}"
    );
    let error = fetch(Fault::RetryAfter(429, "3600".to_owned())).await;
    let Error::RateLimited { retry_after, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(retry_after, Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn rate_limit_headers_do_not_fail_the_request() {
    let pair = Pair::start().await;
    pair.upstream.configure(|settings| {
        settings.rate_limit = Some(RateLimit {
            limit: 100,
            remaining: 1,
            window: 21_600,
        });
    });
    document(pair.manifest().await);
    assert!(matches!(
        pair.manifest().await,
        Err(Error::RateLimited { .. })
    ));
    for nonsense in ["", "many", "-1;w=0", "99999999999999999999;w=1"] {
        pair.upstream
            .configure(|settings| settings.rate_limit = None);
        pair.upstream
            .inject(Fault::Header("ratelimit-remaining", nonsense.to_owned()).on_manifests());
        document(pair.manifest().await);
    }
}

#[tokio::test]
async fn the_tags_of_all_pages_are_returned() {
    let pair = Pair::start().await;
    for tag in ["3", "1", "2", "10"] {
        pair.upstream.tag(REPOSITORY, tag, pair.image.root);
    }
    pair.upstream
        .configure(|settings| settings.tags_page = Some(2));
    let tags = async || {
        within_timeout(
            pair.client
                .tags(&name(), &repository(), &Validators::default()),
        )
        .await
    };
    let list: Value = serde_json::from_slice(&document(tags().await).0).expect("JSON");
    assert_eq!(list["tags"], json!(["1", "10", "2", "3", "latest"]));

    let again = format!("</v2/{REPOSITORY}/tags/list?n=2>; rel=\"next\"");
    pair.upstream.clear_requests();
    pair.upstream
        .inject(Fault::Header("link", again).on("*/tags/list"));
    // The pages form a loop. The request must end, with an error or with the tags.
    let _ = tags().await;
    assert!(pair.upstream.requests().len() < 1000);
}

#[tokio::test]
async fn a_link_to_another_host_is_not_followed() {
    // The link to the next page is not followed, although a redirect to this trusted host would be
    // followed.
    let trusting = |_: &mut Config, upstream: &mut Upstream| {
        upstream.trusted_hosts.push("http://localhost".to_owned());
    };
    let pair = Pair::with(FakeRegistry::builder(), trusting).await;
    let other = FakeRegistry::start().await;
    let away = format!(
        "<http://localhost:{}/v2/{REPOSITORY}/tags/list>; rel=\"next\"",
        other.addr().port()
    );
    pair.upstream
        .inject(Fault::Header("link", away).on("*/tags/list"));
    let listed = within_timeout(
        pair.client
            .tags(&name(), &repository(), &Validators::default()),
    )
    .await;
    assert!(matches!(listed, Err(Error::Protocol { .. })), "{listed:?}");
    assert_eq!(other.requests().len(), 0);
}

#[tokio::test]
async fn a_loop_of_pages_ends() {
    let pair = Pair::start().await;
    for last in ["a", ""] {
        pair.upstream.clear_faults();
        let link = format!("</v2/{REPOSITORY}/tags/list?n=1000{last}>; rel=next");
        pair.upstream
            .inject(Fault::Header("link", link).on("*/tags/list"));
        let listed = within_timeout(pair.client.tags(
            &name(),
            &repository(),
            &Validators::default(),
        ))
        .await;
        assert!(matches!(listed, Err(Error::Protocol { .. })), "{listed:?}");
    }
    assert_eq!(pair.upstream.requests().len(), 3);
}

#[tokio::test]
async fn referrers_come_from_the_api_or_the_tag() {
    let pair = Pair::start().await;
    let subject: &Document = pair.image.root_document();
    let mut expected = Vec::new();
    for seed in 0..3 {
        let artifact = Image::artifact(seed, "application/vnd.example", subject);
        pair.upstream
            .push(REPOSITORY, &format!("artifact-{seed}"), &artifact);
        expected.push(artifact.root.to_string());
    }
    expected.sort();
    let referrers = async |digest: &Digest| {
        let fetched = within_timeout(pair.client.referrers(
            &name(),
            &repository(),
            digest,
            &Validators::default(),
        ))
        .await;
        let (bytes, media_type, ..) = document(fetched);
        let index: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(media_type, MediaType::OCI_INDEX);
        let digests = index["manifests"].as_array().expect("manifests").iter();
        let mut digests: Vec<_> = digests
            .map(|entry| entry["digest"].as_str().expect("a digest").to_owned())
            .collect();
        digests.sort();
        digests
    };
    assert_eq!(referrers(&subject.digest).await, expected);
    pair.upstream
        .configure(|settings| settings.referrers_api = false);
    assert_eq!(referrers(&subject.digest).await, expected);
    assert_eq!(
        referrers(&digest_of(b"nothing refers to this")).await,
        [""; 0]
    );
}

/// An image may have a tag of the form that the referrers tag schema uses.
#[tokio::test]
async fn an_image_with_the_referrers_tag_is_not_a_referrers_list() {
    let pair = Pair::start().await;
    pair.upstream
        .configure(|settings| settings.referrers_api = false);
    let subject = digest_of(b"the subject");
    let tag = subject.to_string().replace(':', "-");
    let root = pair.image.root;
    pair.upstream.tag(REPOSITORY, &tag, root);
    let (name, repository, known) = (name(), repository(), Validators::default());
    let list = pair.client.referrers(&name, &repository, &subject, &known);
    let Ok(DocumentResponse::Document { bytes, .. }) = within_timeout(list).await else {
        panic!("no list");
    };
    let index: Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(index["manifests"], Value::Array(Vec::new()));
}
