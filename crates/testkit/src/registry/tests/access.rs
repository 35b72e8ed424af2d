//! Tests of the fake registry: authentication, tokens and redirects.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::*;
use crate::http;

fn credentials(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

async fn token(registry: &FakeRegistry, query: &str, authorization: Option<&str>) -> (u16, Value) {
    let mut request = Ask::get(format!("/token?service=fake-registry&{query}"));
    if let Some(value) = authorization {
        request = request.header("authorization", value);
    }
    let response = request
        .send(registry.token_addr())
        .await
        .expect("an answer");
    (response.status, response.json())
}

fn bearer(response: &Value) -> String {
    format!(
        "Bearer {}",
        response["access_token"].as_str().expect("a token")
    )
}

#[tokio::test]
async fn basic_authentication_accepts_one_user() {
    let (registry, _) = with_layer(FakeRegistry::builder().basic_auth("ann", "secret")).await;
    let refused = ask(&registry, "/v2/", &[]).await;
    assert_eq!(refused.status, 401);
    assert!(
        refused
            .header("www-authenticate")
            .is_some_and(|value| value.starts_with("Basic "))
    );
    assert_eq!(
        ask(
            &registry,
            "/v2/",
            &[("authorization", &credentials("ann", "guess"))]
        )
        .await
        .status,
        401
    );
    assert_eq!(
        ask(
            &registry,
            "/v2/",
            &[("authorization", &credentials("ann", "secret"))]
        )
        .await
        .status,
        200
    );
}

#[tokio::test]
async fn the_challenge_names_realm_service_and_scope() {
    let (registry, digest) = with_layer(FakeRegistry::builder().token_auth()).await;
    let realm = format!(
        "Bearer realm=\"http://{}/token\",service=\"fake-registry\"",
        registry.token_addr()
    );
    let refused = ask(&registry, &blob_path(&digest), &[]).await;
    let challenge = format!("{realm},scope=\"repository:{REPOSITORY}:pull\"");
    assert_eq!(
        (refused.status, refused.header("www-authenticate")),
        (401, Some(challenge.as_str()))
    );
    assert_eq!(
        ask(&registry, "/v2/", &[]).await.header("www-authenticate"),
        Some(realm.as_str())
    );
}

#[tokio::test]
async fn a_token_is_valid_for_its_scope_until_it_expires() {
    let (registry, digest) = with_layer(FakeRegistry::builder().token_auth()).await;
    let (status, response) = token(
        &registry,
        &format!("scope=repository:{REPOSITORY}:pull"),
        None,
    )
    .await;
    assert_eq!((status, response["expires_in"].as_u64()), (200, Some(300)));
    let good = bearer(&response);
    let header = [("authorization", good.as_str())];
    assert_eq!(
        ask(&registry, &blob_path(&digest), &header).await.status,
        200
    );
    assert_eq!(ask(&registry, "/v2/", &header).await.status, 200);
    let elsewhere = ask(&registry, "/v2/other/tags/list", &header).await;
    assert_eq!(elsewhere.status, 401);
    assert!(
        elsewhere
            .header("www-authenticate")
            .is_some_and(|value| value.contains("insufficient_scope"))
    );

    registry.expire_tokens();
    let expired = ask(&registry, &blob_path(&digest), &header).await;
    assert!(
        expired
            .header("www-authenticate")
            .is_some_and(|value| value.contains("invalid_token"))
    );
}

#[tokio::test]
async fn a_lifetime_of_zero_issues_expired_tokens() {
    let tokens = TokenAuth {
        lifetime: std::time::Duration::ZERO,
        tells_expiry: false,
        ..TokenAuth::default()
    };
    let (registry, _) =
        with_layer(FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(tokens)))
            .await;
    let (_, response) = token(&registry, "", None).await;
    assert_eq!(response.get("expires_in"), None);
    assert_eq!(
        ask(&registry, "/v2/", &[("authorization", &bearer(&response))])
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn a_token_can_be_limited_to_a_number_of_requests() {
    let tokens = TokenAuth {
        uses: Some(2),
        ..TokenAuth::default()
    };
    let (registry, _) =
        with_layer(FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(tokens)))
            .await;
    for _ in 0..2 {
        let (_, response) = token(&registry, "", None).await;
        let good = bearer(&response);
        for status in [200, 200, 401] {
            let response = ask(&registry, "/v2/", &[("authorization", &good)]).await;
            assert_eq!(response.status, status);
        }
    }
}

#[tokio::test]
async fn users_get_access_to_private_repositories() {
    let tokens = TokenAuth {
        users: vec![("ann".to_owned(), "secret".to_owned())],
        identity: Some("refresh me".to_owned()),
        private: vec![REPOSITORY.to_owned()],
        only_access_token: true,
        ..TokenAuth::default()
    };
    let (registry, digest) = with_layer(
        FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(tokens.clone())),
    )
    .await;
    let scope = format!("scope=repository:{REPOSITORY}:pull");
    let path = blob_path(&digest);
    let reads = async |response: &Value| {
        ask(&registry, &path, &[("authorization", &bearer(response))])
            .await
            .status
    };

    let (_, anonymous) = token(&registry, &scope, None).await;
    assert_eq!(anonymous.get("token"), None);
    assert_eq!(reads(&anonymous).await, 401);
    let (_, ann) = token(&registry, &scope, Some(&credentials("ann", "secret"))).await;
    assert_eq!(reads(&ann).await, 200);
    assert_eq!(
        token(&registry, &scope, Some(&credentials("ann", "guess")))
            .await
            .0,
        401
    );

    let form = format!("grant_type=refresh_token&service=fake-registry&{scope}&refresh_token=");
    let post = |secret: &str| Ask::new("POST", "/token").body(format!("{form}{secret}"));
    let response = post("refresh+me")
        .send(registry.token_addr())
        .await
        .expect("an answer");
    assert_eq!(reads(&response.json()).await, 200);
    assert_eq!(
        post("no")
            .send(registry.token_addr())
            .await
            .expect("an answer")
            .status,
        401
    );

    let refusing = TokenAuth {
        anonymous: false,
        ..tokens
    };
    registry.configure(|settings| settings.auth = Auth::Token(refusing));
    assert_eq!(token(&registry, &scope, None).await.0, 401);
}

#[tokio::test]
async fn the_token_server_can_be_stopped_alone() {
    let (registry, _) = with_layer(FakeRegistry::builder().token_auth()).await;
    registry.inject(Fault::Replace("{}".into()).on_tokens().times(1));
    assert_eq!(
        token(&registry, "", None).await,
        (200, serde_json::json!({}))
    );
    registry.stop_tokens().await;
    assert!(
        Ask::get("/token")
            .send(registry.token_addr())
            .await
            .is_err()
    );
    assert_eq!(ask(&registry, "/v2/", &[]).await.status, 401);
}

#[tokio::test]
async fn faults_do_not_affect_unauthorized_requests() {
    let (registry, digest) = with_layer(FakeRegistry::builder().token_auth()).await;
    let fault = registry.inject(Fault::Status(503).on_blobs().times(1));
    assert_eq!(ask(&registry, &blob_path(&digest), &[]).await.status, 401);
    assert_eq!(fault.hits(), 0);
    let (_, response) = token(
        &registry,
        &format!("scope=repository:{REPOSITORY}:pull"),
        None,
    )
    .await;
    let header = [("authorization", &*bearer(&response))];
    assert_eq!(
        ask(&registry, &blob_path(&digest), &header).await.status,
        503
    );
    assert_eq!(
        ask(&registry, &blob_path(&digest), &header).await.status,
        200
    );
    registry.inject(Fault::Status(500).on_blobs().before_auth());
    assert_eq!(ask(&registry, &blob_path(&digest), &[]).await.status, 500);
}

#[tokio::test]
async fn redirected_blobs_are_fetched_without_authorization() {
    let (registry, digest) = with_layer(FakeRegistry::builder()).await;
    registry.configure(|settings| settings.redirect_blobs = true);
    let redirect = ask(&registry, &blob_path(&digest), &[]).await;
    let location = redirect.header("location").expect("a location").to_owned();
    let path = location
        .strip_prefix(&format!("http://{}", registry.cdn_addr()))
        .expect("the address of the CDN");
    assert_eq!(redirect.status, 307);
    let blob = http::get(registry.cdn_addr(), path).await;
    assert_eq!(crate::images::digest_of(&blob.body), digest);
    let twice = Ask::get(path)
        .header("authorization", "Bearer leaked")
        .send(registry.cdn_addr())
        .await;
    assert_eq!(twice.expect("an answer").status, 400);
    let unsigned = http::get(
        registry.cdn_addr(),
        path.split_once('?').expect("a query").0,
    )
    .await;
    assert_eq!(unsigned.status, 403);
    assert_eq!(
        registry.gets_of(&digest),
        1,
        "requests to the CDN do not count for the registry"
    );
    registry.stop_cdn().await;
    assert!(Ask::get(path).send(registry.cdn_addr()).await.is_err());
}
