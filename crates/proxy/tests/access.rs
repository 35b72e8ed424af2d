//! Tests of client authentication: by users of an htpasswd file, and by credentials that the
//! upstream checks (pass-through).
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{Fixture, FixtureOptions, blob_path, error_code, eventually, in_time};
use pierhead_cache::{Claim, Origin};
use pierhead_oci::Digest;
use pierhead_proxy::Auth;
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::log::capture;
use pierhead_testkit::registry::{
    Auth as Upstream, FakeRegistry, Fault, Gate, RecordedRequest, Role, TokenAuth,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MANIFEST: &str = "/v2/app/manifests/1";
const ANN: Option<(&str, &str)> = Some(("ann", "right"));
const BOB: Option<(&str, &str)> = Some(("bob", "other"));
const ANONYMOUS: Option<(&str, &str)> = None;
/// The users whose password at the upstream is `right`.
const READERS: [&str; 3] = ["ann", "cleo", "dan"];

fn request(path: &str, credentials: Option<(&str, &str)>) -> Request {
    match credentials {
        Some((user, password)) => {
            let encoded = STANDARD.encode(format!("{user}:{password}"));
            Request::get(path).header("authorization", format!("Basic {encoded}"))
        }
        None => Request::get(path),
    }
}

async fn get(fixture: &Fixture, path: &str, login: Option<(&str, &str)>) -> Response {
    fixture.send(request(path, login)).await
}

/// Whether the response is a 401 with an authentication challenge. After such a response, clients
/// send credentials.
fn is_refused(response: &Response) -> bool {
    let challenge = response.header("www-authenticate");
    response.status == 401
        && error_code(response) == "UNAUTHORIZED"
        && challenge.is_some_and(|it| it.starts_with("Basic realm="))
}

/// Creates a proxy with an htpasswd file that has the user ann.
async fn with_htpasswd() -> (Fixture, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let users = format!("ann:{}\n", bcrypt::hash("right", 4).unwrap());
    std::fs::write(&file, users).unwrap();
    let auth = Auth::Htpasswd {
        file,
        cache_ttl: Duration::from_secs(60),
    };
    let options = FixtureOptions::default().config(|config| config.auth = auth);
    (options.start().await, folder)
}

#[tokio::test]
async fn users_of_an_htpasswd_file_are_admitted_and_their_passwords_are_not_sent_upstream() {
    let (fixture, _folder) = with_htpasswd().await;
    let image = fixture.push(1, &[1000]);
    for path in ["/v2/", MANIFEST, &blob_path(&image.blobs[0].digest)] {
        for login in [ANONYMOUS, BOB, Some(("ann", "wrong")), Some(("", ""))] {
            assert!(
                is_refused(&get(&fixture, path, login).await),
                "{path} {login:?}"
            );
        }
        // The first request verifies the password by the file. The second request uses the cached
        // decision.
        for _ in 0..2 {
            let response = get(&fixture, path, ANN).await;
            assert_eq!((response.status, response.end), (200, End::Clean), "{path}");
        }
    }
    let bearer = Request::get(MANIFEST).header("authorization", "Bearer right");
    assert!(is_refused(&fixture.send(bearer).await));
    let sent = |request: &RecordedRequest| request.header("authorization").is_some();
    assert_eq!(
        fixture.upstream.count(sent),
        0,
        "a password for pierhead is not for the upstream"
    );
}

#[tokio::test]
async fn repeated_refusals_of_credentials_have_one_line() {
    // Each password is different, because pierhead does not verify a known wrong password again.
    let passwords = ["wrong-1", "wrong-2", "wrong-3", "wrong-4"];
    let lines = capture();
    let (fixture, _folder) = with_htpasswd().await;
    for password in passwords {
        assert!(is_refused(
            &get(&fixture, "/v2/", Some(("ann", password))).await
        ));
    }
    let refused = lines.with("login refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
    for part in [
        "client=127.0.0.1",
        "user=\"ann\"",
        "path=\"/v2/\"",
        "status=401",
        "the password does not match",
    ] {
        assert!(refused[0].contains(part), "{part}: {refused:?}");
    }
    // A password in the field of the user does not get into the log.
    for login in [("s3cret", ""), ("s3cret-2", "x")] {
        assert!(is_refused(&get(&fixture, MANIFEST, Some(login)).await));
    }
    let refused = lines.with("login refused");
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(
        refused[1].contains("does not have this user"),
        "{refused:?}"
    );
    assert!(refused[1].contains(MANIFEST), "{refused:?}");
    for header in ["Bearer a-token", "Basic !"] {
        let request = Request::get(MANIFEST).header("authorization", header);
        assert!(is_refused(&fixture.send(request).await));
    }
    let refused = lines.with("login refused");
    assert_eq!(refused.len(), 3, "{refused:?}");
    assert!(refused[2].contains("no Basic credentials"), "{refused:?}");
    assert!(!lines.text().contains("a-token"), "{}", lines.text());
    assert!(!lines.text().contains("s3cret"), "{}", lines.text());
    let fixture = private(FixtureOptions::default()).await;
    fixture.push(1, &[1000]);
    for password in passwords {
        assert!(is_refused(
            &get(&fixture, MANIFEST, Some(("ann", password))).await
        ));
    }
    let denied = lines.with("upstream denied a client's credentials");
    assert_eq!(denied.len(), 1, "{denied:?}");
    assert!(denied[0].contains("repository=app"), "{denied:?}");
    for secret in passwords {
        assert!(!lines.text().contains(secret), "{}", lines.text());
    }
}

#[tokio::test]
async fn the_body_of_an_unauthenticated_client_is_not_awaited() {
    let (fixture, _folder) = with_htpasswd().await;
    let login = |user: &str| format!("authorization: Basic {}\r\n", STANDARD.encode(user));
    // The HTTP/1.1 fast path serves the first request, and hyper serves the second request.
    for (framing, body) in [
        ("content-length: 1048576", vec![b' '; 1 << 20]),
        ("transfer-encoding: chunked", b"0\r\n\r\n".to_vec()),
    ] {
        for (login, is_known) in [
            (String::new(), false),
            (login("ann:wrong"), false),
            (login("ann:right"), true),
        ] {
            let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
            let head = format!(
                "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                 {login}{framing}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            if is_known {
                stream.write_all(&body).await.unwrap();
            }
            let mut status = [0; 12];
            in_time(stream.read_exact(&mut status)).await.unwrap();
            let is_refused = &status == b"HTTP/1.1 401";
            assert_eq!(is_refused, !is_known, "{framing} {login}");
        }
    }
}

/// Creates a proxy with pass-through. At the upstream, only [`READERS`] may read `app` and `secret`.
/// All clients may read `open`.
async fn private(options: FixtureOptions) -> Fixture {
    let rules = TokenAuth {
        users: READERS.map(|user| (user.into(), "right".into())).to_vec(),
        private: vec!["app".into(), "secret".into()],
        ..TokenAuth::default()
    };
    let mut options = options.config(|config| {
        config.auth = Auth::PassThrough {
            cache_ttl: Duration::from_secs(60),
            anonymous: true,
        };
    });
    options.upstream =
        FakeRegistry::builder().with(|settings| settings.auth = Upstream::Token(rules));
    options.start().await
}

async fn pulls(fixture: &Fixture, image: &Image, login: Option<(&str, &str)>) {
    let manifest = get(fixture, MANIFEST, login).await;
    assert_eq!(
        (manifest.status, &manifest.body),
        (200, &image.root_document().bytes)
    );
    for blob in &image.blobs {
        let got = get(fixture, &blob_path(&blob.digest), login).await;
        assert_eq!((got.status, got.end), (200, End::Clean));
        assert!(got.body == blob.bytes);
    }
}

#[tokio::test]
async fn private_content_is_only_for_clients_that_the_upstream_admits() {
    let fixture = private(FixtureOptions::default()).await;
    let image = fixture.push(1, &[300_000, 1000]);
    let all = |image: &Image| {
        let mut all = vec![
            MANIFEST.to_owned(),
            format!("/v2/app/manifests/{}", image.root),
            "/v2/app/tags/list".to_owned(),
            format!("/v2/app/referrers/{}", image.root),
        ];
        all.extend(image.blobs.iter().map(|blob| blob_path(&blob.digest)));
        all
    };
    let refuses = async |fixture: &Fixture| {
        for path in all(&image) {
            for login in [ANONYMOUS, BOB, Some(("ann", "wrong"))] {
                let response = get(fixture, &path, login).await;
                assert!(is_refused(&response), "{path} {login:?}: {response:?}");
                assert!(response.body.len() < 1000, "no content");
            }
        }
    };
    refuses(&fixture).await;
    pulls(&fixture, &image, ANN).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    // The same requests are sent again, when the content is cached.
    refuses(&fixture).await;
    // Other repositories now also have these digests. All clients may read the repository `open`.
    fixture.upstream.put_blob("open", "other content");
    for repository in ["secret", "open", "absent"] {
        for blob in &image.blobs {
            let path = format!("/v2/{repository}/blobs/{}", blob.digest);
            let response = get(&fixture, &path, BOB).await;
            assert!(matches!(response.status, 401 | 404), "{path}: {response:?}");
            let response = get(&fixture, &path, ANONYMOUS).await;
            assert!(matches!(response.status, 401 | 404), "{path}: {response:?}");
        }
    }
    // A cached decision needs no upstream request.
    let before = fixture.upstream.requests().len();
    pulls(&fixture, &image, ANN).await;
    assert_eq!(fixture.upstream.requests().len(), before);
}

#[tokio::test]
async fn public_content_needs_no_credentials() {
    let fixture = private(FixtureOptions::default()).await;
    let image = Image::random(3, &[1000]);
    fixture.upstream.push("open", "1", &image);
    let response = get(&fixture, "/v2/open/manifests/1", ANONYMOUS).await;
    assert_eq!(
        (response.status, response.body),
        (200, image.root_document().bytes.clone())
    );
    let blob = &image.blobs[0];
    let response = get(
        &fixture,
        &format!("/v2/open/blobs/{}", blob.digest),
        ANONYMOUS,
    )
    .await;
    assert_eq!((response.status, response.body), (200, blob.bytes.clone()));
    // When podman has no credentials, it sends an empty user and password. The challenge in the
    // response to `/v2/` makes podman send credentials.
    assert_eq!(
        get(&fixture, "/v2/open/manifests/1", Some(("", "")))
            .await
            .status,
        200
    );
    let ping = get(&fixture, "/v2/", ANONYMOUS).await;
    assert_eq!(ping.status, 200);
    assert!(ping.header("www-authenticate").is_some());
}

#[tokio::test]
async fn a_cached_decision_outlives_the_upstream_and_without_decision_access_is_denied() {
    let fixture = private(FixtureOptions::default()).await;
    let image = fixture.push(1, &[1000]);
    pulls(&fixture, &image, ANN).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    fixture.upstream.inject(Fault::Reset.on("*").before_auth());
    pulls(&fixture, &image, ANN).await;
    for path in [MANIFEST.to_owned(), blob_path(&image.blobs[0].digest)] {
        let response = get(&fixture, &path, BOB).await;
        assert_eq!((response.status, response.end), (503, End::Clean), "{path}");
    }
}

#[tokio::test]
async fn a_cached_decision_expires() {
    let mut options = FixtureOptions::default();
    options.config.tags_ttl = Duration::from_secs(600);
    let fixture = private(options).await;
    let image = fixture.push(1, &[1000]);
    let config = pierhead_proxy::Config {
        default_upstream: fixture.upstream.addr().to_string().parse().unwrap(),
        auth: Auth::PassThrough {
            cache_ttl: Duration::from_millis(1),
            anonymous: true,
        },
        ..pierhead_proxy::Config::default()
    };
    fixture.reload(config);
    pulls(&fixture, &image, ANN).await;
    fixture.upstream.configure(|settings| {
        settings.auth = Upstream::Token(TokenAuth {
            private: vec!["app".into()],
            ..TokenAuth::default()
        })
    });
    fixture.upstream.expire_tokens();
    eventually(async || is_refused(&get(&fixture, MANIFEST, ANN).await)).await;
    assert!(is_refused(
        &get(&fixture, &blob_path(&image.blobs[0].digest), ANN).await
    ));
}

#[tokio::test]
async fn a_denied_repository_causes_no_upstream_request() {
    let fixture = private(FixtureOptions::default()).await;
    let image = fixture.push(1, &[1000]);
    let registry = fixture.upstream.addr().to_string();
    let mut config = pierhead_proxy::Config {
        default_upstream: registry.parse().unwrap(),
        auth: Auth::PassThrough {
            cache_ttl: Duration::from_secs(60),
            anonymous: true,
        },
        ..pierhead_proxy::Config::default()
    };
    config.rules.deny = vec![format!("{registry}/app").parse().unwrap()];
    fixture.reload(config);
    for path in [
        MANIFEST.to_owned(),
        blob_path(&image.blobs[0].digest),
        "/v2/app/tags/list".to_owned(),
    ] {
        for login in [ANN, BOB, ANONYMOUS] {
            assert_eq!(get(&fixture, &path, login).await.status, 403, "{path}");
        }
    }
    assert_eq!(fixture.upstream.requests().len(), 0);
}

/// Starts a hostile registry, such as a malicious client could run. The registry admits all clients
/// and claims to have each digest, but sends other content.
async fn hostile_registry(digests: &[&Digest]) -> FakeRegistry {
    let hostile = FakeRegistry::builder().start().await;
    for digest in digests {
        hostile.put_blob_as("app", **digest, vec![7; 300_000]);
        hostile.put_manifest_as(
            "app",
            **digest,
            "application/vnd.oci.image.manifest.v1+json",
            "{}",
        );
    }
    hostile
}

#[tokio::test]
async fn a_registry_that_claims_a_digest_gets_no_cached_bytes_of_it() {
    let secret = random_bytes(5, 300_000);
    let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &secret);
    let hostile = hostile_registry(&[&digest]).await;
    let mut options = FixtureOptions::default();
    options
        .other_upstreams
        .push(("hostile.example", hostile.url()));
    let fixture = private(options).await;
    fixture.upstream.put_blob("app", secret.clone());
    let path = blob_path(&digest);
    assert!(get(&fixture, &path, ANN).await.body == secret);
    fixture.wait_until_stored(&digest).await;
    for login in [ANONYMOUS, BOB, ANN] {
        for path in [
            format!("{path}?ns=hostile.example"),
            format!("/v2/app/manifests/{digest}?ns=hostile.example"),
        ] {
            let response = in_time(request(&path, login).send(fixture.addr)).await;
            let Ok(response) = response else { continue };
            let leaked = response
                .body
                .windows(64)
                .any(|bytes| secret.windows(64).step_by(4096).any(|it| it == bytes));
            assert!(!leaked, "{path}: bytes of another registry");
            assert!(
                response.status != 200 || response.end != End::Clean,
                "{path}: {response:?}"
            );
        }
    }
    // Once the registry really has the content, the proxy serves the content from that registry.
    hostile.put_blob_as("app", digest, secret.clone());
    let response = get(&fixture, &format!("{path}?ns=hostile.example"), ANONYMOUS).await;
    assert!(response.status == 200 && response.body == secret);
    assert!(hostile.gets_of(&digest) > 0);
}

/// Puts a private blob into the upstream, and starts a hostile registry that claims to have the
/// blob.
async fn private_blob_and_hostile_registry(
    size: usize,
) -> (Fixture, FakeRegistry, bytes::Bytes, Digest) {
    let secret = random_bytes(6, size);
    let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &secret);
    let hostile = hostile_registry(&[&digest]).await;
    // The other content has the length of the private blob, so that the registry responds to any
    // range.
    hostile.put_blob_as("app", digest, vec![7; size]);
    let mut options = FixtureOptions::default();
    options
        .other_upstreams
        .push(("hostile.example", hostile.url()));
    let fixture = private(options).await;
    fixture.upstream.put_blob("app", secret.clone());
    (fixture, hostile, secret, digest)
}

/// Whether a request that names the hostile registry returns the first bytes of the private blob.
async fn leaks(fixture: &Fixture, secret: &[u8], digest: &Digest) -> bool {
    let path = format!("{}?ns=hostile.example", blob_path(digest));
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let Ok(mut response) = in_time(connection.start(&request(&path, ANONYMOUS))).await else {
        return false;
    };
    in_time(response.chunk())
        .await
        .is_some_and(|bytes| bytes.len() >= 64 && secret.starts_with(&bytes[..64]))
}

#[tokio::test]
async fn a_running_fill_is_not_for_clients_of_another_registry() {
    let (fixture, _hostile, secret, digest) = private_blob_and_hostile_registry(3_000_000).await;
    let gate = Gate::new();
    let halt = Fault::GateBody(2_000_000, gate.clone()).on_blob(&digest);
    fixture.upstream.inject(halt);
    let mut ann = Connection::open(fixture.addr).await.unwrap();
    let mut response = in_time(ann.start(&request(&blob_path(&digest), ANN)))
        .await
        .unwrap();
    let first = in_time(response.chunk()).await.unwrap();
    assert!(!first.is_empty() && secret.starts_with(&first));
    assert!(!leaks(&fixture, &secret, &digest).await);
    gate.release();
    assert!(in_time(response.whole()).await.unwrap().body.len() + first.len() == secret.len());
}

#[tokio::test]
async fn staged_bytes_of_a_fill_are_not_for_clients_of_another_registry() {
    let (fixture, hostile, secret, digest) = private_blob_and_hostile_registry(3_000_000).await;
    fixture.upstream.inject(
        Fault::CutBody(2_000_000)
            .on_blob(&digest)
            .method("GET")
            .times(1),
    );
    fixture
        .upstream
        .inject(Fault::Reset.on_blob(&digest).method("GET").skip(1));
    let cut = in_time(request(&blob_path(&digest), ANN).send(fixture.addr)).await;
    assert!(cut.is_ok_and(|cut| cut.end != End::Clean));
    eventually(async || fixture.cache.stat().fills == 0).await;
    // This request starts the next fill of the digest, from the hostile registry.
    assert!(!leaks(&fixture, &secret, &digest).await);
    assert!(hostile.gets_of(&digest) > 0);
}

/// Stops the proxy, and starts another proxy with the same data folder and the same upstream.
async fn restart(fixture: Fixture, options: FixtureOptions) -> Fixture {
    let running_upstream = Some(fixture.upstream.clone());
    let data = Some(fixture.close().await);
    private(FixtureOptions {
        data,
        running_upstream,
        ..options
    })
    .await
}

/// Starts a proxy, lets ann pull an image, and waits until the cache has the image.
async fn with_cached_image() -> (Fixture, Image) {
    let fixture = private(FixtureOptions::default()).await;
    let image = fixture.push(1, &[300_000, 1000]);
    pulls(&fixture, &image, ANN).await;
    for blob in &image.blobs {
        fixture.wait_until_stored(&blob.digest).await;
    }
    (fixture, image)
}

/// Number of requests that the upstream has answered with content or with the head of content.
fn answered(fixture: &Fixture, method: &str) -> usize {
    fixture.upstream.count(|request| {
        request.role == Role::Registry
            && request.method == method
            && matches!(request.status, Some(200 | 206 | 304))
    })
}

#[tokio::test]
async fn after_a_restart_each_reader_costs_one_proof_and_no_download() {
    let (mut fixture, image) = with_cached_image().await;
    for _ in 0..2 {
        fixture = restart(fixture, FixtureOptions::default()).await;
        fixture.upstream.clear_requests();
        let readers = READERS.map(|user| pulls(&fixture, &image, Some((user, "right"))));
        let [one, two, three] = readers;
        tokio::join!(one, two, three);
        assert_eq!(answered(&fixture, "GET"), 0, "no download");
        assert!(answered(&fixture, "HEAD") <= READERS.len());
        // The decisions are cached now.
        fixture.upstream.clear_requests();
        pulls(&fixture, &image, ANN).await;
        assert_eq!(fixture.upstream.requests().len(), 0);
    }
}

#[tokio::test]
async fn after_a_restart_a_blob_alone_costs_one_proof_and_no_download() {
    let (fixture, image) = with_cached_image().await;
    let fixture = restart(fixture, FixtureOptions::default()).await;
    fixture.upstream.clear_requests();
    let blob = &image.blobs[0];
    for user in READERS {
        for method in ["HEAD", "GET"] {
            let encoded = STANDARD.encode(format!("{user}:right"));
            let request = Request::new(method, blob_path(&blob.digest))
                .header("authorization", format!("Basic {encoded}"));
            let response = fixture.send(request).await;
            assert_eq!(response.status, 200, "{method} of {user}");
        }
    }
    assert_eq!(answered(&fixture, "GET"), 0);
    assert_eq!(answered(&fixture, "HEAD"), READERS.len());
}

#[tokio::test]
async fn after_a_restart_a_cached_decision_outlives_the_upstream() {
    let (fixture, image) = with_cached_image().await;
    let fixture = restart(fixture, FixtureOptions::default()).await;
    // This request proves that ann may read the repository.
    assert_eq!(get(&fixture, MANIFEST, ANN).await.status, 200);
    fixture.upstream.stop().await;
    pulls(&fixture, &image, ANN).await;
    for path in [MANIFEST.to_owned(), blob_path(&image.blobs[0].digest)] {
        for login in [BOB, Some(("cleo", "right"))] {
            let response = get(&fixture, &path, login).await;
            assert_eq!((response.status, response.end), (503, End::Clean), "{path}");
            assert!(response.body.len() < 1000, "no content");
        }
    }
}

#[tokio::test]
async fn after_a_restart_cached_content_is_only_for_clients_that_the_upstream_admits() {
    let (fixture, image) = with_cached_image().await;
    let fixture = restart(fixture, FixtureOptions::default()).await;
    fixture.upstream.put_blob("open", "other content");
    let refuses = async || {
        let blob = image.blobs[0].digest;
        for login in [ANONYMOUS, BOB, Some(("ann", "wrong"))] {
            for path in [
                MANIFEST.to_owned(),
                format!("/v2/app/manifests/{}", image.root),
                blob_path(&blob),
            ] {
                let response = get(&fixture, &path, login).await;
                assert!(is_refused(&response), "{path} {login:?}: {response:?}");
                assert!(response.body.len() < 1000, "no content");
            }
            // The upstream has this blob in none of these repositories.
            for repository in ["secret", "open", "absent"] {
                let path = format!("/v2/{repository}/blobs/{blob}");
                let response = get(&fixture, &path, login).await;
                assert!(matches!(response.status, 401 | 404), "{path}: {response:?}");
            }
        }
        // The decision that ann may read the repository `secret` is cached.
        let path = format!("/v2/secret/blobs/{blob}");
        assert_eq!(get(&fixture, &path, ANN).await.status, 404);
    };
    let other = Image::random(9, &[1000]);
    fixture.upstream.push("secret", "1", &other);
    let response = get(&fixture, "/v2/secret/manifests/1", ANN).await;
    assert_eq!(response.status, 200);
    refuses().await;
    pulls(&fixture, &image, ANN).await;
    refuses().await;
}

#[tokio::test]
async fn after_a_restart_each_registry_that_sent_a_blob_shares_it() {
    let (fixture, hostile, secret, digest) = private_blob_and_hostile_registry(300_000).await;
    let options = || FixtureOptions {
        other_upstreams: vec![("hostile.example", hostile.url())],
        ..FixtureOptions::default()
    };
    let (path, other) = (
        blob_path(&digest),
        format!("{}?ns=hostile.example", blob_path(&digest)),
    );
    assert!(get(&fixture, &path, ANN).await.body == secret);
    fixture.wait_until_stored(&digest).await;
    let fixture = restart(fixture, options()).await;
    // The hostile registry claims to have the blob, and sends other content.
    assert!(!leaks(&fixture, &secret, &digest).await);
    let response = in_time(request(&other, ANONYMOUS).send(fixture.addr)).await;
    assert!(!response.is_ok_and(|it| it.status == 200 && it.end == End::Clean));
    // After the registry has sent the blob, its clients share the cached blob, too.
    hostile.put_blob_as("app", digest, secret.clone());
    assert!(get(&fixture, &other, ANONYMOUS).await.body == secret);
    let fixture = restart(fixture, options()).await;
    fixture.upstream.clear_requests();
    hostile.clear_requests();
    assert!(get(&fixture, &other, ANONYMOUS).await.body == secret);
    assert!(get(&fixture, &path, ANN).await.body == secret);
    assert_eq!(
        (hostile.gets_of(&digest), answered(&fixture, "GET")),
        (0, 0)
    );
}

#[tokio::test]
async fn a_blob_without_a_recorded_registry_is_downloaded_once() {
    let mut fixture = private(FixtureOptions::default()).await;
    let image = fixture.push(1, &[300_000]);
    // Earlier builds recorded no registry.
    for blob in &image.blobs {
        let claim = fixture.cache.claim(&blob.digest, Origin::LOCAL).await;
        let Claim::Leader(mut fill, _) = claim.unwrap() else {
            panic!("nobody else fills it");
        };
        let len = u64::try_from(blob.bytes.len()).unwrap();
        fill.begin(Some(len)).await.unwrap();
        fill.write(blob.bytes.clone()).await.unwrap();
        fill.finish().await.unwrap();
    }
    for downloads in [image.blobs.len(), 0] {
        fixture = restart(fixture, FixtureOptions::default()).await;
        for user in READERS {
            fixture.upstream.clear_requests();
            pulls(&fixture, &image, Some((user, "right"))).await;
            let gets = image
                .blobs
                .iter()
                .map(|it| fixture.upstream.gets_of(&it.digest));
            let expected = if user == READERS[0] { downloads } else { 0 };
            assert_eq!(gets.sum::<usize>(), expected, "{user}");
        }
    }
}

#[tokio::test]
async fn an_interrupted_download_resumes_with_pass_through() {
    let fixture = private(FixtureOptions::default()).await;
    let content = random_bytes(8, 3_000_000);
    let digest = fixture.upstream.put_blob("app", content.clone());
    let get_of = |fault: Fault| fault.on_blob(&digest).method("GET");
    fixture
        .upstream
        .inject(get_of(Fault::CutBody(2_000_000)).times(1));
    fixture.upstream.inject(get_of(Fault::Reset).skip(1));
    let cut = in_time(request(&blob_path(&digest), ANN).send(fixture.addr)).await;
    assert!(cut.is_ok_and(|cut| cut.end != End::Clean));
    eventually(async || fixture.cache.stat().fills == 0).await;
    fixture.upstream.clear_faults();
    let fixture = restart(fixture, FixtureOptions::default()).await;
    fixture.upstream.clear_requests();
    assert!(get(&fixture, &blob_path(&digest), ANN).await.body == content);
    let ranges = |it: &RecordedRequest| it.method == "GET" && it.status == Some(206);
    assert_eq!(fixture.upstream.count(ranges), 1);
    fixture.wait_until_stored(&digest).await;
    let before = fixture.upstream.gets_of(&digest);
    assert!(get(&fixture, &blob_path(&digest), ANN).await.body == content);
    assert_eq!(fixture.upstream.gets_of(&digest), before);
}

#[tokio::test]
async fn slow_lists_of_one_registry_do_not_delay_decisions_of_another() {
    let slow = FakeRegistry::builder().start().await;
    slow.inject(Fault::HangBody(10).on("*/tags/list"));
    let mut options = FixtureOptions::default();
    options.other_upstreams.push(("slow.example", slow.url()));
    let fixture = private(options).await;
    fixture.push(1, &[1000]);
    let addr = fixture.addr;
    let many = 8;
    let waiting = (0..many).map(|n| {
        let repository = format!("a{n}");
        slow.push(&repository, "1", &Image::random(n, &[10]));
        let path = format!("/v2/{repository}/tags/list?ns=slow.example");
        tokio::spawn(async move { request(&path, ANONYMOUS).send(addr).await })
    });
    let waiting: Vec<_> = waiting.collect();
    in_time(slow.wait_for(|all| all.len() >= 2)).await;
    let response = get(&fixture, "/v2/app/tags/list", ANN).await;
    assert_eq!(response.status, 200, "{response:?}");
    for one in waiting {
        one.abort();
    }
}

#[tokio::test]
async fn the_first_page_of_a_list_decides_about_access_to_lists() {
    let fixture = private(FixtureOptions::default()).await;
    fixture.push(1, &[1000]);
    // The upstream responds with an HTML login form and status 200.
    let form = fixture
        .upstream
        .inject(Fault::Header("content-type", "text/html".to_owned()).on("/v2/app/tags/list"));
    let response = get(&fixture, "/v2/app/tags/list", ANN).await;
    assert!(response.status >= 500, "{response:?}");
    form.remove();
    fixture.upstream.clear_requests();
    assert_eq!(get(&fixture, "/v2/app/tags/list", ANN).await.status, 200);
    let pages = |n: &str| {
        fixture.upstream.count(|it| {
            it.path.ends_with("/tags/list")
                && it.param("n").as_deref() == Some(n)
                && it.status == Some(200)
        })
    };
    assert_eq!((pages("1"), pages("1000")), (1, 1));
}

/// Returns a configuration of the registry client with the upstream credentials of `ann`.
fn with_credentials(fixture: &Fixture) -> pierhead_remote::Config {
    let mut remote = fixture.remote.clone();
    for upstream in remote.upstreams.values_mut() {
        upstream.credentials = Some(pierhead_remote::Credentials::Basic {
            user: "ann".into(),
            password: "right".to_owned().into(),
        });
    }
    remote
}

/// Returns a configuration of the proxy that requires client certificates, so that requests over
/// plain TCP are refused.
fn closed(fixture: &Fixture) -> pierhead_proxy::Config {
    pierhead_proxy::Config {
        default_upstream: fixture.upstream.addr().to_string().parse().unwrap(),
        auth: Auth::Certificate,
        ..pierhead_proxy::Config::default()
    }
}

fn private_app() -> Upstream {
    Upstream::Token(TokenAuth {
        users: vec![("ann".into(), "right".into())],
        private: vec!["app".into()],
        ..TokenAuth::default()
    })
}

#[tokio::test]
async fn a_reload_gives_no_credentials_to_an_open_listener() {
    let fixture = Fixture::start().await;
    fixture
        .upstream
        .configure(|settings| settings.auth = private_app());
    let image = fixture.push(1, &[1000]);
    // The proxy receives this request after the new upstream client exists, and before the proxy
    // has its new configuration.
    fixture.client.reload(with_credentials(&fixture)).unwrap();
    let path = blob_path(&image.blobs[0].digest);
    let between = get(&fixture, &path, ANONYMOUS).await;
    assert_ne!(between.status, 200, "with the credentials of the operator");
    fixture.reload_with(closed(&fixture), with_credentials(&fixture));
    assert_eq!(get(&fixture, MANIFEST, ANONYMOUS).await.status, 403);
    // After the reload, the proxy itself may use the configured credentials.
    let warmed = fixture
        .proxy
        .warm(&fixture.reference(":1"), &[], |_| ())
        .await;
    assert!(warmed.is_ok(), "{warmed:?}");
    // The next reload allows open access again, and removes the upstream credentials.
    let config = pierhead_proxy::Config {
        auth: Auth::Open,
        ..closed(&fixture)
    };
    fixture.reload(config);
    let other = Image::random(2, &[1000]);
    fixture.upstream.push("app", "2", &other);
    let path = blob_path(&other.blobs[0].digest);
    assert_ne!(get(&fixture, &path, ANONYMOUS).await.status, 200);
}

#[tokio::test]
async fn a_request_from_before_a_reload_gets_no_credentials_of_the_new_configuration() {
    let fixture = FixtureOptions::default()
        .config(|config| config.limits.downloads_per_client = 1)
        .start()
        .await;
    fixture
        .upstream
        .configure(|settings| settings.auth = private_app());
    let image = fixture.push(1, &[1000]);
    let public = random_bytes(7, 200_000);
    let digest = fixture.upstream.put_blob("public", public.clone());
    let gate = Gate::new();
    let halt = Fault::GateBody(100_000, gate.clone()).on_blob(&digest);
    fixture.upstream.inject(halt);
    // This request holds the only download slot of the client, so the next request waits.
    let mut first = Connection::open(fixture.addr).await.unwrap();
    let held = request(&format!("/v2/public/blobs/{digest}"), ANONYMOUS);
    let mut held = in_time(first.start(&held)).await.unwrap();
    in_time(held.chunk()).await.unwrap();
    let private = image.blobs[0].digest;
    let addr = fixture.addr;
    let waiting =
        tokio::spawn(async move { request(&blob_path(&private), ANONYMOUS).send(addr).await });
    eventually(async || fixture.cache.stat().fills == 2).await;
    fixture.reload_with(closed(&fixture), with_credentials(&fixture));
    gate.release();
    in_time(held.whole()).await.unwrap();
    let response = in_time(waiting).await.unwrap();
    let is_served =
        response.is_ok_and(|response| response.status == 200 && response.end == End::Clean);
    assert!(!is_served, "with the credentials of the operator");
}
