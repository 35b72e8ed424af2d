//! Tests of pass-through: requests use only the credentials of the client, and no token is shared
//! between clients.

use pierhead_remote::{AccessDecision, ClientCredentials, Resource};
use pierhead_testkit::registry::{Auth, RecordedRequest, Role, Settings, TokenAuth};

use super::*;

/// Creates a private repository with the users Ann and Bob. The configured credentials of pierhead
/// are the credentials of Ann.
async fn private() -> Pair {
    let auth = TokenAuth {
        users: vec![
            ("ann".to_owned(), "secret".to_owned()),
            ("bob".to_owned(), "other".to_owned()),
        ],
        private: vec![REPOSITORY.to_owned()],
        ..TokenAuth::default()
    };
    let builder = FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth));
    Pair::with(builder, |_, upstream| {
        upstream.credentials = Some(user("ann", "secret"));
    })
    .await
}

fn bob() -> ClientCredentials {
    ClientCredentials::basic("bob", "other")
}

async fn decision(pair: &Pair, resource: Resource<'_>, who: &ClientCredentials) -> AccessDecision {
    within_timeout(pair.client.authorize(&name(), &repository(), resource, who))
        .await
        .expect("a decision")
}

#[tokio::test]
async fn the_upstream_decides_for_each_client_separately() {
    let pair = private().await;
    let (layer, tag) = (pair.layer(), reference(":latest").target);
    let wrong = ClientCredentials::basic("bob", "guess");
    // Even though the configured credentials of pierhead are valid, pierhead must not use them for
    // a client.
    pair.manifest().await.expect("a manifest");
    for resource in [Resource::Manifest(&tag), Resource::Blob(&layer)] {
        for (who, expected) in [
            (&bob(), AccessDecision::Granted),
            (&wrong, AccessDecision::Denied),
            (&ClientCredentials::anonymous(), AccessDecision::Denied),
        ] {
            assert_eq!(
                decision(&pair, resource, who).await,
                expected,
                "{resource:?}"
            );
        }
    }
    let absent = reference(":absent").target;
    let requested = decision(&pair, Resource::Manifest(&absent), &bob()).await;
    assert_eq!(requested, AccessDecision::NotFound);
}

#[tokio::test]
async fn basic_credentials_are_checked_without_a_token_server() {
    let pair = Pair::with(
        FakeRegistry::builder().basic_auth("ann", "secret"),
        |_, upstream| upstream.credentials = Some(user("ann", "secret")),
    )
    .await;
    pair.manifest().await.expect("a manifest");
    let layer = pair.layer();
    for (who, expected) in [
        (
            ClientCredentials::basic("ann", "secret"),
            AccessDecision::Granted,
        ),
        (
            ClientCredentials::basic("ann", "guess"),
            AccessDecision::Denied,
        ),
        (ClientCredentials::anonymous(), AccessDecision::Denied),
    ] {
        assert_eq!(
            decision(&pair, Resource::Blob(&layer), &who).await,
            expected
        );
    }
}

/// The cached token of one client must not serve another client.
#[tokio::test]
async fn no_token_serves_two_clients() {
    let pair = private().await;
    let fetch = async |client: Client| {
        within_timeout(client.manifest(&reference(":latest"), &Validators::default())).await
    };
    let bobs = pair.client.on_behalf(&bob());
    fetch(bobs.clone()).await.expect("bob may");
    fetch(pair.client.on_behalf(&bob())).await.expect("bob may");
    let tokens = |pair: &Pair| pair.upstream.count(|request| request.role == Role::Tokens);
    assert_eq!(tokens(&pair), 1, "bob's token is reused for bob");
    let anonymous = pair.client.on_behalf(&ClientCredentials::anonymous());
    let refused = fetch(anonymous).await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    let so_far = tokens(&pair);
    fetch(pair.client.clone())
        .await
        .expect("the configured credentials are ann's");
    assert_eq!(tokens(&pair), so_far + 1, "bob's cached token is not used");
    let mut stream = within_timeout(bobs.blob(&name(), &repository(), &pair.layer(), 0))
        .await
        .expect("a stream");
    assert!(
        within_timeout(stream.next())
            .await
            .is_some_and(|bytes| bytes.is_ok())
    );
    assert_eq!(tokens(&pair), so_far + 1);
}

#[tokio::test]
async fn failures_and_login_pages_decide_no_access() {
    let pair = private().await;
    let tag = reference(":latest").target;
    let ask = async || {
        let (name, repository, who) = (name(), repository(), bob());
        let resource = Resource::Manifest(&tag);
        within_timeout(pair.client.authorize(&name, &repository, resource, &who)).await
    };
    let page = Fault::Header("content-type", "text/html".to_owned());
    let (page, mute) = (
        pair.upstream.inject(page.on_manifests()),
        pair.upstream
            .inject(Fault::WithoutHeader("docker-content-digest").on_manifests()),
    );
    let requested = ask().await;
    assert!(
        matches!(requested, Err(Error::Protocol { .. })),
        "{requested:?}"
    );
    page.remove();
    mute.remove();
    for status in [429, 500, 503] {
        pair.upstream.clear_faults();
        pair.upstream.inject(Fault::Status(status).on_manifests());
        assert!(ask().await.is_err(), "{status}");
    }
    pair.upstream.clear_faults();
    pair.upstream.stop_tokens().await;
    pair.upstream.expire_tokens();
    assert!(ask().await.is_err());
}

#[tokio::test]
async fn the_rate_limit_of_one_client_does_not_limit_others() {
    let pair = private().await;
    let tag = reference(":latest").target;
    let limit = Fault::RetryAfter(429, "3600".to_owned());
    pair.upstream.inject(limit.on_manifests().times(2));
    let ann = ClientCredentials::basic("ann", "secret");
    let fetch = async |who: &ClientCredentials| {
        let client = pair.client.on_behalf(who);
        within_timeout(client.manifest(&reference(":latest"), &Validators::default())).await
    };
    let limited = fetch(&ann).await;
    let message = matches!(limited, Err(Error::RateLimited { .. }));
    assert!(message, "{limited:?}");
    let (name, repository, resource) = (name(), repository(), Resource::Manifest(&tag));
    let requested = within_timeout(pair.client.authorize(&name, &repository, resource, &ann)).await;
    assert!(
        matches!(requested, Err(Error::RateLimited { .. })),
        "{requested:?}"
    );
    assert_eq!(
        decision(&pair, resource, &bob()).await,
        AccessDecision::Granted
    );
    fetch(&bob()).await.expect("bob has a rate of his own");
}

/// A rate limit of pierhead's configured credentials says nothing about the credentials of clients.
#[tokio::test]
async fn the_rate_limit_of_pierhead_does_not_limit_clients() {
    let pair = private().await;
    let limit = Fault::RetryAfter(429, "3600".to_owned());
    pair.upstream.inject(limit.on_manifests().times(1));
    for _ in 0..2 {
        let limited = pair.manifest().await;
        let message = matches!(limited, Err(Error::RateLimited { .. }));
        assert!(message, "{limited:?}");
    }
    let bobs = pair.client.on_behalf(&bob());
    let fetched =
        within_timeout(bobs.manifest(&reference(":latest"), &Validators::default())).await;
    fetched.expect("bob has a rate of his own");
}

/// Requests with these paths go to the CDN, and to no other server.
const CDN: &str = "/blobs/*";

async fn redirected() -> Pair {
    let pair = private().await;
    let redirect = |settings: &mut Settings| settings.redirect_blobs = true;
    pair.upstream.configure(redirect);
    pair
}

/// A refusal by another origin (for example the login page of a gateway) does not decide whether
/// the client may read.
#[tokio::test]
async fn a_refusal_of_another_origin_grants_no_access() {
    let pair = redirected().await;
    let layer = pair.layer();
    let ask = async || {
        let (name, repository, who) = (name(), repository(), bob());
        let resource = Resource::Blob(&layer);
        within_timeout(pair.client.authorize(&name, &repository, resource, &who)).await
    };
    for status in [401, 403, 404, 405, 410, 429] {
        let refuses = pair.upstream.inject(Fault::Status(status).on(CDN));
        for _ in 0..6 {
            let requested = ask().await;
            assert!(
                !matches!(requested, Ok(AccessDecision::Granted)),
                "{status}"
            );
            assert!(!matches!(requested, Err(Error::Down { .. })), "{status}");
        }
        refuses.remove();
        assert_eq!(
            ask().await.expect("no circuit opened"),
            AccessDecision::Granted
        );
    }
    // The other origin refuses HEAD, and its response to GET is an HTML page.
    pair.upstream
        .inject(Fault::Status(405).on(CDN).method("HEAD"));
    pair.upstream.inject(Fault::IgnoreRange.on(CDN));
    let page = Fault::Header("content-type", "Text/HTML; charset=utf-8".to_owned());
    pair.upstream.inject(page.on(CDN));
    let requested = ask().await;
    assert!(
        matches!(requested, Err(Error::Protocol { .. })),
        "{requested:?}"
    );
}

/// A refusal by another origin does not count as a failure of the registry.
#[tokio::test]
async fn a_refusal_of_another_origin_is_a_refusal_for_the_client() {
    let pair = redirected().await;
    let (bobs, layer) = (pair.client.on_behalf(&bob()), pair.layer());
    for status in [401, 403] {
        let refuses = pair.upstream.inject(Fault::Status(status).on(CDN));
        for _ in 0..6 {
            let fetched = within_timeout(bobs.blob(&name(), &repository(), &layer, 0)).await;
            let message = fetched.err().expect("a refusal");
            assert!(matches!(message, Error::Denied { .. }), "{message:?}");
        }
        refuses.remove();
        let fetched = within_timeout(bobs.blob(&name(), &repository(), &layer, 0)).await;
        assert!(fetched.is_ok(), "no circuit opened");
    }
}

#[tokio::test]
async fn a_page_without_content_type_of_another_origin_grants_no_access() {
    let pair = redirected().await;
    let layer = pair.layer();
    pair.upstream.inject(Fault::IgnoreRange.on(CDN));
    let untyped = pair
        .upstream
        .inject(Fault::WithoutHeader("content-type").on(CDN));
    let (name, repository, resource) = (name(), repository(), Resource::Blob(&layer));
    let requested =
        within_timeout(pair.client.authorize(&name, &repository, resource, &bob())).await;
    assert!(
        matches!(requested, Err(Error::Protocol { .. })),
        "{requested:?}"
    );
    untyped.remove();
    assert_eq!(
        decision(&pair, resource, &bob()).await,
        AccessDecision::Granted
    );
}

/// Signed URLs are often valid for a single method, so a GET request may succeed where a HEAD
/// request is refused.
#[tokio::test]
async fn access_is_granted_by_a_get_of_one_byte_when_head_is_refused() {
    let pair = redirected().await;
    let layer = pair.layer();
    for status in [400, 403, 405] {
        let refuses = Fault::Status(status).on(CDN).method("HEAD");
        let refuses = pair.upstream.inject(refuses);
        let granted = decision(&pair, Resource::Blob(&layer), &bob()).await;
        assert_eq!(granted, AccessDecision::Granted, "{status}");
        refuses.remove();
    }
    let gets = |request: &RecordedRequest| request.role == Role::Cdn && request.method == "GET";
    let all: Vec<_> = pair.upstream.requests().into_iter().filter(gets).collect();
    assert_eq!(all.len(), 3);
    for get in &all {
        assert_eq!(get.header("range"), Some("bytes=0-0"));
        assert_eq!(get.header("authorization"), None);
    }
}
