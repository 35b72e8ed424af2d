//! Requests in the name of a client: its login and no other, and no token of one for another.

use pierhead_remote::{AccessDecision, ClientCredentials, Resource};
use pierhead_testkit::registry::{Auth, RecordedRequest, Role, Settings, TokenAuth};

use super::*;

/// Ann and Bob have logins; the repository is private, and pierhead itself logs in as Ann.
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
    soon(pair.client.authorize(&name(), &repository(), resource, who))
        .await
        .expect("a decision")
}

#[tokio::test]
async fn the_upstream_judges_each_login_by_itself() {
    let pair = private().await;
    let (layer, tag) = (pair.layer(), reference(":latest").target);
    let wrong = ClientCredentials::basic("bob", "guess");
    // Ours, which is good, must help nobody.
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
    let asked = decision(&pair, Resource::Manifest(&absent), &bob()).await;
    assert_eq!(asked, AccessDecision::NotFound);
}

#[tokio::test]
async fn a_password_is_judged_where_there_are_no_tokens() {
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

/// Whoever was let in a moment ago has left a token behind: the next one must not find it.
#[tokio::test]
async fn no_token_serves_two_logins() {
    let pair = private().await;
    let fetch = async |client: Client| {
        soon(client.manifest(&reference(":latest"), &Validators::default())).await
    };
    let bobs = pair.client.on_behalf(&bob());
    fetch(bobs.clone()).await.expect("bob may");
    fetch(pair.client.on_behalf(&bob())).await.expect("bob may");
    let tokens = |pair: &Pair| pair.upstream.count(|request| request.role == Role::Tokens);
    assert_eq!(tokens(&pair), 1, "bob's token is bob's for longer");
    let nobody = pair.client.on_behalf(&ClientCredentials::anonymous());
    let refused = fetch(nobody).await;
    assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
    let so_far = tokens(&pair);
    fetch(pair.client.clone()).await.expect("ours is ann's");
    assert_eq!(tokens(&pair), so_far + 1, "bob's was there");
    let mut stream = soon(bobs.blob(&name(), &repository(), &pair.layer(), 0))
        .await
        .expect("a stream");
    assert!(soon(stream.next()).await.is_some_and(|bytes| bytes.is_ok()));
    assert_eq!(tokens(&pair), so_far + 1);
}

#[tokio::test]
async fn no_verdict_comes_of_trouble_or_of_a_login_page() {
    let pair = private().await;
    let tag = reference(":latest").target;
    let ask = async || {
        let (name, repository, who) = (name(), repository(), bob());
        let resource = Resource::Manifest(&tag);
        soon(pair.client.authorize(&name, &repository, resource, &who)).await
    };
    let page = Fault::Header("content-type", "text/html".to_owned());
    let (page, mute) = (
        pair.upstream.inject(page.on_manifests()),
        pair.upstream
            .inject(Fault::WithoutHeader("docker-content-digest").on_manifests()),
    );
    let asked = ask().await;
    assert!(matches!(asked, Err(Error::Protocol { .. })), "{asked:?}");
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
async fn the_rate_of_one_login_limits_no_other() {
    let pair = private().await;
    let tag = reference(":latest").target;
    let limit = Fault::RetryAfter(429, "3600".to_owned());
    pair.upstream.inject(limit.on_manifests().times(2));
    let ann = ClientCredentials::basic("ann", "secret");
    let fetch = async |who: &ClientCredentials| {
        let client = pair.client.on_behalf(who);
        soon(client.manifest(&reference(":latest"), &Validators::default())).await
    };
    let limited = fetch(&ann).await;
    let message = matches!(limited, Err(Error::RateLimited { .. }));
    assert!(message, "{limited:?}");
    let (name, repository, resource) = (name(), repository(), Resource::Manifest(&tag));
    let asked = soon(pair.client.authorize(&name, &repository, resource, &ann)).await;
    assert!(matches!(asked, Err(Error::RateLimited { .. })), "{asked:?}");
    assert_eq!(
        decision(&pair, resource, &bob()).await,
        AccessDecision::Granted
    );
    fetch(&bob()).await.expect("bob has a rate of his own");
}

/// Our own rate, which the upstream counts by our login, says nothing of theirs.
#[tokio::test]
async fn our_own_rate_limits_no_guest() {
    let pair = private().await;
    let limit = Fault::RetryAfter(429, "3600".to_owned());
    pair.upstream.inject(limit.on_manifests().times(1));
    for _ in 0..2 {
        let limited = pair.manifest().await;
        let message = matches!(limited, Err(Error::RateLimited { .. }));
        assert!(message, "{limited:?}");
    }
    let bobs = pair.client.on_behalf(&bob());
    let fetched = soon(bobs.manifest(&reference(":latest"), &Validators::default())).await;
    fetched.expect("bob has a rate of his own");
}

/// The CDN's paths begin so, and no others.
const CDN: &str = "/blobs/*";

async fn redirected() -> Pair {
    let pair = private().await;
    let redirect = |settings: &mut Settings| settings.redirect_blobs = true;
    pair.upstream.configure(redirect);
    pair
}

/// A gateway that sends everybody to its login says nothing of rights, however its login answers.
#[tokio::test]
async fn what_refuses_elsewhere_grants_nothing() {
    let pair = redirected().await;
    let layer = pair.layer();
    let ask = async || {
        let (name, repository, who) = (name(), repository(), bob());
        let resource = Resource::Blob(&layer);
        soon(pair.client.authorize(&name, &repository, resource, &who)).await
    };
    for status in [401, 403, 404, 405, 410, 429] {
        let refuses = pair.upstream.inject(Fault::Status(status).on(CDN));
        for _ in 0..6 {
            let asked = ask().await;
            assert!(!matches!(asked, Ok(AccessDecision::Granted)), "{status}");
            assert!(!matches!(asked, Err(Error::Down { .. })), "{status}");
        }
        refuses.remove();
        assert_eq!(
            ask().await.expect("nobody was held to blame"),
            AccessDecision::Granted
        );
    }
    // HEAD is not for that page, and GET shows it.
    pair.upstream
        .inject(Fault::Status(405).on(CDN).method("HEAD"));
    pair.upstream.inject(Fault::IgnoreRange.on(CDN));
    let page = Fault::Header("content-type", "Text/HTML; charset=utf-8".to_owned());
    pair.upstream.inject(page.on(CDN));
    let asked = ask().await;
    assert!(matches!(asked, Err(Error::Protocol { .. })), "{asked:?}");
}

/// Nor does it say that the registry is in trouble.
#[tokio::test]
async fn what_refuses_a_guest_elsewhere_is_a_refusal() {
    let pair = redirected().await;
    let (bobs, layer) = (pair.client.on_behalf(&bob()), pair.layer());
    for status in [401, 403] {
        let refuses = pair.upstream.inject(Fault::Status(status).on(CDN));
        for _ in 0..6 {
            let fetched = soon(bobs.blob(&name(), &repository(), &layer, 0)).await;
            let message = fetched.err().expect("a refusal");
            assert!(matches!(message, Error::Denied { .. }), "{message:?}");
        }
        refuses.remove();
        let fetched = soon(bobs.blob(&name(), &repository(), &layer, 0)).await;
        assert!(fetched.is_ok(), "nobody was held to blame");
    }
}

#[tokio::test]
async fn a_page_of_no_type_elsewhere_grants_nothing() {
    let pair = redirected().await;
    let layer = pair.layer();
    pair.upstream.inject(Fault::IgnoreRange.on(CDN));
    let untyped = pair
        .upstream
        .inject(Fault::WithoutHeader("content-type").on(CDN));
    let (name, repository, resource) = (name(), repository(), Resource::Blob(&layer));
    let asked = soon(pair.client.authorize(&name, &repository, resource, &bob())).await;
    assert!(matches!(asked, Err(Error::Protocol { .. })), "{asked:?}");
    untyped.remove();
    assert_eq!(
        decision(&pair, resource, &bob()).await,
        AccessDecision::Granted
    );
}

/// Signed URLs are often good for one method only.
#[tokio::test]
async fn an_object_store_that_refuses_head_shows_a_byte() {
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
