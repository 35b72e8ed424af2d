//! Who may read: users of a file, and logins that the upstream judges.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pierhead_oci::Digest;
use pierhead_proxy::Auth;
use pierhead_testkit::http::{Connection, End, Request, Response};
use pierhead_testkit::images::{Image, random_bytes};
use pierhead_testkit::registry::{Auth as Upstream, FakeRegistry, Fault, Gate, TokenAuth};
use stage::{Plan, Stage, blob_path, code, eventually, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MANIFEST: &str = "/v2/app/manifests/1";
const ANN: Option<(&str, &str)> = Some(("ann", "right"));
const BOB: Option<(&str, &str)> = Some(("bob", "other"));
const NOBODY: Option<(&str, &str)> = None;

fn request(path: &str, login: Option<(&str, &str)>) -> Request {
    match login {
        Some((user, password)) => {
            let code = STANDARD.encode(format!("{user}:{password}"));
            Request::get(path).header("authorization", format!("Basic {code}"))
        }
        None => Request::get(path),
    }
}

async fn get(stage: &Stage, path: &str, login: Option<(&str, &str)>) -> Response {
    stage.ask(request(path, login)).await
}

/// 401, with the challenge that makes clients send what they have.
fn is_refused(answer: &Response) -> bool {
    let challenge = answer.header("www-authenticate");
    answer.status == 401
        && code(answer) == "UNAUTHORIZED"
        && challenge.is_some_and(|it| it.starts_with("Basic realm="))
}

#[tokio::test]
async fn users_of_a_file_are_let_in_and_their_passwords_go_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    std::fs::write(
        &file,
        format!("ann:{}\n", bcrypt::hash("right", 4).unwrap()),
    )
    .unwrap();
    let auth = Auth::Htpasswd {
        file,
        cache_ttl: Duration::from_secs(60),
    };
    let stage = Plan::default()
        .config(|config| config.auth = auth)
        .open()
        .await;
    let image = stage.push(1, &[1000]);
    for path in ["/v2/", MANIFEST, &blob_path(&image.blobs[0].digest)] {
        for login in [NOBODY, BOB, Some(("ann", "wrong")), Some(("", ""))] {
            assert!(
                is_refused(&get(&stage, path, login).await),
                "{path} {login:?}"
            );
        }
        // The first asks the file, the second does not.
        for _ in 0..2 {
            let answer = get(&stage, path, ANN).await;
            assert_eq!((answer.status, answer.end), (200, End::Clean), "{path}");
        }
    }
    let bearer = Request::get(MANIFEST).header("authorization", "Bearer right");
    assert!(is_refused(&stage.ask(bearer).await));
    let sent = |request: &pierhead_testkit::registry::RecordedRequest| {
        request.header("authorization").is_some()
    };
    assert_eq!(
        stage.upstream.count(sent),
        0,
        "it is our password, not the upstream's"
    );
}

#[tokio::test]
async fn the_body_of_a_client_without_a_login_is_not_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let users = format!("ann:{}\n", bcrypt::hash("right", 4).unwrap());
    std::fs::write(&file, users).unwrap();
    let auth = Auth::Htpasswd {
        file,
        cache_ttl: Duration::from_secs(60),
    };
    let stage = Plan::default()
        .config(|config| config.auth = auth)
        .open()
        .await;
    let login = |user: &str| format!("authorization: Basic {}\r\n", STANDARD.encode(user));
    // The fast path answers the first, hyper the second.
    for (framing, body) in [
        ("content-length: 1048576", vec![b' '; 1 << 20]),
        ("transfer-encoding: chunked", b"0\r\n\r\n".to_vec()),
    ] {
        for (login, is_known) in [
            (String::new(), false),
            (login("ann:wrong"), false),
            (login("ann:right"), true),
        ] {
            let mut stream = TcpStream::connect(stage.addr).await.unwrap();
            let head = format!(
                "POST /v2/app/_pierhead/bundle HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                 {login}{framing}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            if is_known {
                stream.write_all(&body).await.unwrap();
            }
            let mut status = [0; 12];
            soon(stream.read_exact(&mut status)).await.unwrap();
            let is_refused = &status == b"HTTP/1.1 401";
            assert_eq!(is_refused, !is_known, "{framing} {login}");
        }
    }
}

/// `app` and `secret` are private at the upstream, `open` is not; ann may log in there.
async fn private(plan: Plan) -> Stage {
    let rules = TokenAuth {
        users: vec![("ann".into(), "right".into())],
        private: vec!["app".into(), "secret".into()],
        ..TokenAuth::default()
    };
    let mut plan = plan.config(|config| {
        config.auth = Auth::PassThrough {
            cache_ttl: Duration::from_secs(60),
            anonymous: true,
        };
    });
    plan.upstream = FakeRegistry::builder().with(|settings| settings.auth = Upstream::Token(rules));
    plan.open().await
}

async fn pulls(stage: &Stage, image: &Image, login: Option<(&str, &str)>) {
    let manifest = get(stage, MANIFEST, login).await;
    assert_eq!(
        (manifest.status, &manifest.body),
        (200, &image.root_document().bytes)
    );
    for blob in &image.blobs {
        let got = get(stage, &blob_path(&blob.digest), login).await;
        assert_eq!((got.status, got.end), (200, End::Clean));
        assert!(got.body == blob.bytes);
    }
}

#[tokio::test]
async fn what_is_private_is_for_those_whom_the_upstream_lets_in() {
    let stage = private(Plan::default()).await;
    let image = stage.push(1, &[300_000, 1000]);
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
    let refuses = async |stage: &Stage| {
        for path in all(&image) {
            for login in [NOBODY, BOB, Some(("ann", "wrong"))] {
                let answer = get(stage, &path, login).await;
                assert!(is_refused(&answer), "{path} {login:?}: {answer:?}");
                assert!(answer.body.len() < 1000, "no content in it");
            }
        }
    };
    refuses(&stage).await;
    pulls(&stage, &image, ANN).await;
    for blob in &image.blobs {
        stage.committed(&blob.digest).await;
    }
    // Now that it is cached, too.
    refuses(&stage).await;
    // By names of other repositories, of which one may read the open one.
    stage.upstream.put_blob("open", "something else");
    for repository in ["secret", "open", "absent"] {
        for blob in &image.blobs {
            let path = format!("/v2/{repository}/blobs/{}", blob.digest);
            let answer = get(&stage, &path, BOB).await;
            assert!(matches!(answer.status, 401 | 404), "{path}: {answer:?}");
            let answer = get(&stage, &path, NOBODY).await;
            assert!(matches!(answer.status, 401 | 404), "{path}: {answer:?}");
        }
    }
    // Who was let in costs the upstream nothing more.
    let asked = stage.upstream.requests().len();
    pulls(&stage, &image, ANN).await;
    assert_eq!(stage.upstream.requests().len(), asked);
}

#[tokio::test]
async fn what_is_public_needs_no_login() {
    let stage = private(Plan::default()).await;
    let image = Image::random(3, &[1000]);
    stage.upstream.push("open", "1", &image);
    let answer = get(&stage, "/v2/open/manifests/1", NOBODY).await;
    assert_eq!(
        (answer.status, answer.body),
        (200, image.root_document().bytes.clone())
    );
    let blob = &image.blobs[0];
    let answer = get(&stage, &format!("/v2/open/blobs/{}", blob.digest), NOBODY).await;
    assert_eq!((answer.status, answer.body), (200, blob.bytes.clone()));
    // As podman says that it is nobody; and the ping tells it how to be somebody.
    assert_eq!(
        get(&stage, "/v2/open/manifests/1", Some(("", "")))
            .await
            .status,
        200
    );
    let ping = get(&stage, "/v2/", NOBODY).await;
    assert_eq!(ping.status, 200);
    assert!(ping.header("www-authenticate").is_some());
}

#[tokio::test]
async fn a_verdict_outlives_the_upstream_until_it_ends_and_none_means_no() {
    let stage = private(Plan::default()).await;
    let image = stage.push(1, &[1000]);
    pulls(&stage, &image, ANN).await;
    for blob in &image.blobs {
        stage.committed(&blob.digest).await;
    }
    stage.upstream.inject(Fault::Reset.on("*").before_auth());
    pulls(&stage, &image, ANN).await;
    for path in [MANIFEST.to_owned(), blob_path(&image.blobs[0].digest)] {
        let answer = get(&stage, &path, BOB).await;
        assert_eq!((answer.status, answer.end), (503, End::Clean), "{path}");
    }
}

#[tokio::test]
async fn a_verdict_ends() {
    let mut plan = Plan::default();
    plan.config.tags_ttl = Duration::from_secs(600);
    let stage = private(plan).await;
    let image = stage.push(1, &[1000]);
    let config = pierhead_proxy::Config {
        default_upstream: stage.upstream.addr().to_string().parse().unwrap(),
        auth: Auth::PassThrough {
            cache_ttl: Duration::from_millis(1),
            anonymous: true,
        },
        ..pierhead_proxy::Config::default()
    };
    stage.proxy.reload(config);
    pulls(&stage, &image, ANN).await;
    stage.upstream.configure(|settings| {
        settings.auth = Upstream::Token(TokenAuth {
            private: vec!["app".into()],
            ..TokenAuth::default()
        })
    });
    stage.upstream.expire_tokens();
    eventually(async || is_refused(&get(&stage, MANIFEST, ANN).await)).await;
    assert!(is_refused(
        &get(&stage, &blob_path(&image.blobs[0].digest), ANN).await
    ));
}

#[tokio::test]
async fn nobody_is_asked_about_what_is_denied() {
    let stage = private(Plan::default()).await;
    let image = stage.push(1, &[1000]);
    let registry = stage.upstream.addr().to_string();
    let mut config = pierhead_proxy::Config {
        default_upstream: registry.parse().unwrap(),
        auth: Auth::PassThrough {
            cache_ttl: Duration::from_secs(60),
            anonymous: true,
        },
        ..pierhead_proxy::Config::default()
    };
    config.rules.deny = vec![format!("{registry}/app").parse().unwrap()];
    stage.proxy.reload(config);
    for path in [
        MANIFEST.to_owned(),
        blob_path(&image.blobs[0].digest),
        "/v2/app/tags/list".to_owned(),
    ] {
        for login in [ANN, BOB, NOBODY] {
            assert_eq!(get(&stage, &path, login).await.status, 403, "{path}");
        }
    }
    assert_eq!(stage.upstream.requests().len(), 0);
}

/// A registry that says yes to everybody and to everything, but has nothing: what a tenant can put up.
async fn liar(digests: &[&Digest]) -> FakeRegistry {
    let liar = FakeRegistry::builder().start().await;
    for digest in digests {
        liar.put_blob_as("app", **digest, vec![7; 300_000]);
        liar.put_manifest_as(
            "app",
            **digest,
            "application/vnd.oci.image.manifest.v1+json",
            "{}",
        );
    }
    liar
}

#[tokio::test]
async fn a_registry_that_claims_a_digest_gets_nothing_of_it() {
    let secret = random_bytes(5, 300_000);
    let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &secret);
    let liar = liar(&[&digest]).await;
    let mut plan = Plan::default();
    plan.others.push(("liar.example", liar.url()));
    let stage = private(plan).await;
    stage.upstream.put_blob("app", secret.clone());
    let path = blob_path(&digest);
    assert!(get(&stage, &path, ANN).await.body == secret);
    stage.committed(&digest).await;
    for login in [NOBODY, BOB, ANN] {
        for path in [
            format!("{path}?ns=liar.example"),
            format!("/v2/app/manifests/{digest}?ns=liar.example"),
        ] {
            let answer = soon(request(&path, login).send(stage.addr)).await;
            let Ok(answer) = answer else { continue };
            let leaked = answer
                .body
                .windows(64)
                .any(|bytes| secret.windows(64).step_by(4096).any(|it| it == bytes));
            assert!(!leaked, "{path}: bytes of another registry");
            assert!(
                answer.status != 200 || answer.end != End::Clean,
                "{path}: {answer:?}"
            );
        }
    }
    // An honest one that has it serves it, from there.
    liar.put_blob_as("app", digest, secret.clone());
    let answer = get(&stage, &format!("{path}?ns=liar.example"), NOBODY).await;
    assert!(answer.status == 200 && answer.body == secret);
    assert!(liar.gets_of(&digest) > 0);
}

/// A private blob at the upstream, and a liar that says it has it too.
async fn coveted(size: usize) -> (Stage, FakeRegistry, bytes::Bytes, Digest) {
    let secret = random_bytes(6, size);
    let digest = Digest::of(pierhead_oci::Algorithm::Sha256, &secret);
    let liar = liar(&[&digest]).await;
    // As long as the true one, so that it has an answer to any range.
    liar.put_blob_as("app", digest, vec![7; size]);
    let mut plan = Plan::default();
    plan.others.push(("liar.example", liar.url()));
    let stage = private(plan).await;
    stage.upstream.put_blob("app", secret.clone());
    (stage, liar, secret, digest)
}

/// Whether the first bytes of it come by way of the liar.
async fn leaks(stage: &Stage, secret: &[u8], digest: &Digest) -> bool {
    let path = format!("{}?ns=liar.example", blob_path(digest));
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let Ok(mut answer) = soon(connection.start(&request(&path, NOBODY))).await else {
        return false;
    };
    soon(answer.chunk())
        .await
        .is_some_and(|bytes| bytes.len() >= 64 && secret.starts_with(&bytes[..64]))
}

#[tokio::test]
async fn a_fill_under_way_is_not_for_those_who_mean_another_registry() {
    let (stage, _liar, secret, digest) = coveted(3_000_000).await;
    let gate = Gate::new();
    let halt = Fault::GateBody(2_000_000, gate.clone()).on_blob(&digest);
    stage.upstream.inject(halt);
    let mut ann = Connection::open(stage.addr).await.unwrap();
    let mut answer = soon(ann.start(&request(&blob_path(&digest), ANN)))
        .await
        .unwrap();
    let first = soon(answer.chunk()).await.unwrap();
    assert!(!first.is_empty() && secret.starts_with(&first));
    assert!(!leaks(&stage, &secret, &digest).await);
    gate.release();
    assert!(soon(answer.whole()).await.unwrap().body.len() + first.len() == secret.len());
}

#[tokio::test]
async fn what_a_fill_left_behind_is_not_either() {
    let (stage, liar, secret, digest) = coveted(3_000_000).await;
    stage.upstream.inject(
        Fault::CutBody(2_000_000)
            .on_blob(&digest)
            .method("GET")
            .times(1),
    );
    stage
        .upstream
        .inject(Fault::Reset.on_blob(&digest).method("GET").skip(1));
    let cut = soon(request(&blob_path(&digest), ANN).send(stage.addr)).await;
    assert!(cut.is_ok_and(|cut| cut.end != End::Clean));
    eventually(async || stage.cache.stat().fills == 0).await;
    // It would lead the next fill, from where the last one stopped.
    assert!(!leaks(&stage, &secret, &digest).await);
    assert!(liar.gets_of(&digest) > 0);
}

#[tokio::test]
async fn slow_lists_of_one_registry_keep_no_other_from_its_verdict() {
    let slow = FakeRegistry::builder().start().await;
    slow.inject(Fault::HangBody(10).on("*/tags/list"));
    let mut plan = Plan::default();
    plan.others.push(("slow.example", slow.url()));
    let stage = private(plan).await;
    stage.push(1, &[1000]);
    let addr = stage.addr;
    let many = 8;
    let waiting = (0..many).map(|n| {
        let repository = format!("a{n}");
        slow.push(&repository, "1", &Image::random(n, &[10]));
        let path = format!("/v2/{repository}/tags/list?ns=slow.example");
        tokio::spawn(async move { request(&path, NOBODY).send(addr).await })
    });
    let waiting: Vec<_> = waiting.collect();
    soon(slow.wait_for(|all| all.len() >= 2)).await;
    let answer = get(&stage, "/v2/app/tags/list", ANN).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    for one in waiting {
        one.abort();
    }
}

#[tokio::test]
async fn the_first_lines_of_a_list_tell_who_may_read_lists() {
    let stage = private(Plan::default()).await;
    stage.push(1, &[1000]);
    // A form to log in, which says 200 to everybody.
    let form = stage
        .upstream
        .inject(Fault::Header("content-type", "text/html".to_owned()).on("/v2/app/tags/list"));
    let answer = get(&stage, "/v2/app/tags/list", ANN).await;
    assert!(answer.status >= 500, "{answer:?}");
    form.remove();
    stage.upstream.clear_requests();
    assert_eq!(get(&stage, "/v2/app/tags/list", ANN).await.status, 200);
    let pages = |n: &str| {
        stage.upstream.count(|it| {
            it.path.ends_with("/tags/list")
                && it.param("n").as_deref() == Some(n)
                && it.status == Some(200)
        })
    };
    assert_eq!((pages("1"), pages("1000")), (1, 1));
}

/// A configuration with the upstream login `ann`.
fn with_credentials(stage: &Stage) -> pierhead_remote::Config {
    let mut remote = stage.remote.clone();
    for upstream in remote.upstreams.values_mut() {
        upstream.credentials = Some(pierhead_remote::Credentials::Basic {
            user: "ann".into(),
            password: "right".to_owned().into(),
        });
    }
    remote
}

/// Switches the proxy of `stage` to client certificates, so that no plain connection has access.
fn closed(stage: &Stage) -> pierhead_proxy::Config {
    pierhead_proxy::Config {
        default_upstream: stage.upstream.addr().to_string().parse().unwrap(),
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
    let stage = Stage::open().await;
    stage
        .upstream
        .configure(|settings| settings.auth = private_app());
    let image = stage.push(1, &[1000]);
    // A request between the two steps of a reload.
    stage.client.reload(with_credentials(&stage)).unwrap();
    let path = blob_path(&image.blobs[0].digest);
    let between = get(&stage, &path, NOBODY).await;
    assert_ne!(between.status, 200, "with the credentials of the operator");
    stage.proxy.reload(closed(&stage));
    assert_eq!(get(&stage, MANIFEST, NOBODY).await.status, 403);
    // After the reload, the proxy itself may use the credentials.
    let warmed = stage.proxy.warm(&stage.reference(":1"), &[], |_| ()).await;
    assert!(warmed.is_ok(), "{warmed:?}");
    // Back to open access, without the credentials.
    stage.client.reload(stage.remote.clone()).unwrap();
    let config = pierhead_proxy::Config {
        auth: Auth::Open,
        ..closed(&stage)
    };
    stage.proxy.reload(config);
    let other = Image::random(2, &[1000]);
    stage.upstream.push("app", "2", &other);
    let path = blob_path(&other.blobs[0].digest);
    assert_ne!(get(&stage, &path, NOBODY).await.status, 200);
}

#[tokio::test]
async fn a_request_that_was_let_in_before_a_reload_gets_no_credentials_of_it() {
    let stage = Plan::default()
        .config(|config| config.limits.downloads_per_client = 1)
        .open()
        .await;
    stage
        .upstream
        .configure(|settings| settings.auth = private_app());
    let image = stage.push(1, &[1000]);
    let public = random_bytes(7, 200_000);
    let digest = stage.upstream.put_blob("public", public.clone());
    let gate = Gate::new();
    let halt = Fault::GateBody(100_000, gate.clone()).on_blob(&digest);
    stage.upstream.inject(halt);
    // It holds the only download slot of this client, so that the next request waits.
    let mut first = Connection::open(stage.addr).await.unwrap();
    let held = request(&format!("/v2/public/blobs/{digest}"), NOBODY);
    let mut held = soon(first.start(&held)).await.unwrap();
    soon(held.chunk()).await.unwrap();
    let private = image.blobs[0].digest;
    let addr = stage.addr;
    let waiting =
        tokio::spawn(async move { request(&blob_path(&private), NOBODY).send(addr).await });
    eventually(async || stage.cache.stat().fills == 2).await;
    stage.client.reload(with_credentials(&stage)).unwrap();
    stage.proxy.reload(closed(&stage));
    gate.release();
    soon(held.whole()).await.unwrap();
    let answer = soon(waiting).await.unwrap();
    let is_served = answer.is_ok_and(|answer| answer.status == 200 && answer.end == End::Clean);
    assert!(!is_served, "with the credentials of the operator");
}
