//! Tests of authentication (tokens, basic) and of redirects against the fake registry.

use pierhead_testkit::registry::{Auth, Role, TokenAuth};

use super::*;

/// Returns the number of requests that the token server received.
fn token_requests(pair: &Pair) -> usize {
    pair.upstream.count(|request| request.role == Role::Tokens)
}

fn users() -> TokenAuth {
    TokenAuth {
        users: vec![("ann".to_owned(), "secret".to_owned())],
        private: vec![REPOSITORY.to_owned()],
        ..TokenAuth::default()
    }
}

#[tokio::test]
async fn one_token_serves_a_repository_until_it_expires() {
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.manifest().await.expect("a manifest");
    pair.pull(0).await.1.expect("the layer");
    pair.manifest().await.expect("a manifest");
    assert_eq!(token_requests(&pair), 1);
    let token = pair
        .upstream
        .requests()
        .into_iter()
        .find(|request| request.role == Role::Tokens)
        .expect("one");
    assert_eq!(
        token.param("scope"),
        Some(format!("repository:{REPOSITORY}:pull"))
    );
    assert!(token.param("service").is_some());

    pair.upstream.expire_tokens();
    pair.manifest().await.expect("a manifest");
    assert_eq!(token_requests(&pair), 2);
}

#[tokio::test]
async fn a_token_that_expires_during_a_blob_is_renewed() {
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.manifest().await.expect("a manifest");
    pair.upstream
        .inject(Fault::CutBody(70_000).on_blobs().times(1));
    let layer = pair.layer();
    let mut stream = pair
        .client
        .blob(&name(), &repository(), &layer, 0)
        .await
        .expect("a stream");
    pair.upstream.expire_tokens();
    let mut received = Vec::new();
    while let Some(bytes) = within_timeout(stream.next()).await {
        received.extend_from_slice(&bytes.expect("bytes"));
    }
    assert_eq!(received, pair.image.blobs[1].bytes);
}

#[tokio::test]
async fn another_repository_needs_another_token() {
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.upstream.push("library/other", "latest", &pair.image);
    pair.manifest().await.expect("a manifest");
    let other = "up.example/library/other:latest"
        .parse()
        .expect("a reference");
    within_timeout(pair.client.manifest(&other, &Validators::default()))
        .await
        .expect("a manifest");
    assert_eq!(token_requests(&pair), 2);
}

#[tokio::test]
async fn unusual_but_valid_token_responses_are_accepted() {
    let auth = TokenAuth {
        only_access_token: true,
        tells_expiry: false,
        ..TokenAuth::default()
    };
    let pair = Pair::with(
        FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth)),
        |_, _| {},
    )
    .await;
    pair.manifest().await.expect("a manifest");
}

/// In this test, the token server issues only expired tokens. The registry client must not fetch
/// tokens in a loop.
#[tokio::test]
async fn a_token_that_is_issued_expired_ends_in_a_refusal() {
    let auth = TokenAuth {
        lifetime: Duration::ZERO,
        ..TokenAuth::default()
    };
    let pair = Pair::with(
        FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth)),
        |_, _| {},
    )
    .await;
    let fetched = pair.manifest().await;
    assert!(matches!(fetched, Err(Error::Denied { .. })), "{fetched:?}");
    assert!(token_requests(&pair) < 6);
}

#[tokio::test]
async fn a_private_repository_needs_the_credentials_of_its_user() {
    let auth = users();
    let start = async |credentials: Option<Credentials>| {
        let builder =
            FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth.clone()));
        Pair::with(builder, |_, upstream| upstream.credentials = credentials).await
    };
    start(Some(user("ann", "secret")))
        .await
        .manifest()
        .await
        .expect("a manifest");
    for credentials in [None, Some(user("ann", "guess"))] {
        let fetched = start(credentials).await.manifest().await;
        assert!(matches!(fetched, Err(Error::Denied { .. })), "{fetched:?}");
    }
}

#[tokio::test]
async fn an_identity_token_is_exchanged() {
    let auth = TokenAuth {
        identity: Some("refresh me".to_owned()),
        ..users()
    };
    let builder = FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth));
    let identity = Credentials::Identity("refresh me".to_owned().into());
    let pair = Pair::with(builder, |_, upstream| upstream.credentials = Some(identity)).await;
    pair.manifest().await.expect("a manifest");
    let request = pair
        .upstream
        .requests()
        .into_iter()
        .find(|request| request.role == Role::Tokens)
        .expect("one");
    assert_eq!(
        (request.method.as_str(), request.query),
        ("POST", None),
        "a secret in a URL ends up in logs"
    );
}

#[tokio::test]
async fn basic_credentials_are_sent_after_a_basic_challenge() {
    let start = async |credentials| {
        let builder = FakeRegistry::builder().basic_auth("ann", "secret");
        Pair::with(builder, |_, upstream| upstream.credentials = credentials).await
    };
    let pair = start(Some(user("ann", "secret"))).await;
    pair.manifest().await.expect("a manifest");
    pair.pull(0).await.1.expect("the layer");
    for credentials in [None, Some(user("ann", "guess"))] {
        let pair = start(credentials).await;
        let fetched = pair.manifest().await;
        assert!(matches!(fetched, Err(Error::Denied { .. })), "{fetched:?}");
        assert!(pair.upstream.requests().len() < 6);
    }
}

#[tokio::test]
async fn the_failure_of_a_token_server_is_the_fault_of_the_upstream() {
    let faults = [
        Fault::Reset,
        Fault::HangHead,
        Fault::Status(500),
        Fault::Garbage,
        Fault::Replace("no".into()),
    ];
    for_each_fault(faults, async |fault| {
        let message = format!("{fault:?}");
        let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
        pair.upstream.inject(fault.on_tokens());
        let fetched = pair.manifest().await;
        assert!(
            fetched.is_err_and(|error| error.is_retryable()),
            "{message}"
        );
    })
    .await;
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.upstream.stop_tokens().await;
    assert!(
        pair.manifest()
            .await
            .is_err_and(|error| error.is_retryable())
    );
    pair.upstream.restart().await;
    pair.manifest().await.expect("a manifest");
}

#[tokio::test]
async fn the_authorization_header_is_not_sent_to_the_cdn() {
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.upstream
        .configure(|settings| settings.redirect_blobs = true);
    pair.pull(0)
        .await
        .1
        .expect("the CDN refuses requests with an authorization");
    let pair = Pair::with(
        FakeRegistry::builder().basic_auth("ann", "secret"),
        |_, upstream| {
            upstream.credentials = Some(user("ann", "secret"));
        },
    );
    let pair = pair.await;
    pair.upstream
        .configure(|settings| settings.redirect_blobs = true);
    pair.pull(0).await.1.expect("a pull with basic credentials");
    assert_eq!(pair.upstream.count(|request| request.role == Role::Cdn && request.header("authorization").is_some()), 0);
}

#[tokio::test]
async fn an_interrupted_blob_behind_a_redirect_is_resumed() {
    let pair = Pair::with(FakeRegistry::builder().token_auth(), |_, _| {}).await;
    pair.upstream
        .configure(|settings| settings.redirect_blobs = true);
    // Only the paths of the CDN (the host to which the registry redirects) begin with /blobs/.
    pair.upstream
        .inject(Fault::CutBody(70_000).on("/blobs/*").times(1));
    pair.pull(0).await.1.expect("the layer");
    pair.upstream.stop_cdn().await;
    assert!(
        pair.pull(0)
            .await
            .1
            .is_err_and(|error| error.is_retryable())
    );
}

#[tokio::test]
async fn the_number_of_redirects_is_bounded() {
    let pair = Pair::start().await;
    pair.upstream.inject(Fault::RedirectLoop.on_blobs());
    let ended = pair.pull(0).await.1;
    assert!(matches!(ended, Err(Error::Protocol { .. })), "{ended:?}");
    assert_eq!(pair.upstream.requests().len(), 1, "the loop is detected");
}
