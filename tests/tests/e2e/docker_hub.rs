//! End-to-end tests with an upstream like Docker Hub: TLS, a token server, blobs on a CDN, rate
//! limits.

use std::fs;

use anyhow::Result;
use pierhead_testkit::{
    http::Request,
    registry::{Auth, Authority, Background, Builder, FakeRegistry, RateLimit, Role, TokenAuth},
};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, Podman, PullResult},
    image::{GREETING, images},
    paths,
    pierhead::{Options, Pierhead},
    registry::{self, Registry, Settings},
    tool::or_skip,
};
use serde_json::json;
use tempfile::TempDir;

use crate::requests::{ask, get};

/// Starts a fake Docker Hub with the test images, and a pierhead that trusts its CA. `keys` are
/// additional keys in the upstream's section of the configuration.
fn hub(builder: Builder, keys: &str) -> Result<(Background, Pierhead, TempDir)> {
    let images = images()?;
    let hub = builder.tls().start_in_background();
    hub.push_layout(images.small.layout().folder())?;
    let folder = paths::scratch("hub")?;
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, hub.ca_pem())?;
    let config = format!(
        "[upstreams.\"docker.io\"]\naddresses = {:?}\nca = {ca:?}\ntrusted_hosts = [\"{}\", \"{}\"]\n{keys}",
        hub.url(),
        hub.token_addr(),
        hub.cdn_addr()
    );
    let pierhead = Pierhead::start(Options::new().config(&config))?;
    Ok((hub, pierhead, folder))
}

/// Pulls twice by one client through a hub with tokens and redirects, and checks the requests.
fn pull_twice(client: &dyn Client, hub: &Background) -> Result<()> {
    let images = images()?;
    for _ in 0..2 {
        for image in [&images.small, &images.large] {
            let here = image.for_this_platform()?;
            let expected = PullResult {
                root: image.root.clone(),
                config: here.config.clone(),
            };
            assert_eq!(client.pull(&image.name())?, expected);
            assert_eq!(client.run(&image.name(), &[])?.as_deref(), Some(GREETING));
            for blob in here.blobs() {
                // Each blob takes one GET of the registry, whose response is a redirect, and one
                // GET of the CDN.
                assert_eq!(
                    hub.count(|it| it.method == "GET"
                        && it.path.ends_with(&blob)
                        && it.role == Role::Cdn),
                    1
                );
                let requested = |it: &_| served(it) && it.path.ends_with(&blob);
                assert_eq!(hub.count(requested), 1, "{blob}");
            }
        }
        client.empty()?;
        hub.stop();
    }
    let leaked = hub.count(|it| it.role == Role::Cdn && it.header("authorization").is_some());
    assert_eq!(leaked, 0, "the CDN got a token");
    Ok(())
}

/// Whether a request is a GET that the registry authorized.
fn served(request: &pierhead_testkit::registry::RecordedRequest) -> bool {
    request.role == Role::Registry && request.method == "GET" && request.status != Some(401)
}

fn like_docker_hub() -> Builder {
    FakeRegistry::builder()
        .token_auth()
        .with(|settings| settings.redirect_blobs = true)
}

#[test]
fn docker_pulls_twice() -> Result<()> {
    if or_skip(Docker::find()).is_none() {
        return Ok(());
    }
    let (hub, pierhead, _folder) = hub(like_docker_hub(), "")?;
    pull_twice(&Docker::with_mirror(pierhead.address())?, &hub)
}

#[test]
fn containerd_pulls_twice() -> Result<()> {
    if or_skip(Containerd::find()).is_none() {
        return Ok(());
    }
    let (hub, pierhead, _folder) = hub(like_docker_hub(), "")?;
    pull_twice(
        &Containerd::with_mirror("docker.io", pierhead.address())?,
        &hub,
    )
}

#[test]
fn podman_pulls_twice() -> Result<()> {
    if or_skip(Podman::find()).is_none() {
        return Ok(());
    }
    let (hub, pierhead, _folder) = hub(like_docker_hub(), "")?;
    pull_twice(&Podman::with_mirror("docker.io", pierhead.address())?, &hub)
}

/// pierhead caches tokens while they are valid: it requests one token per repository, not one per
/// request.
#[test]
fn tokens_are_reused() -> Result<()> {
    let (hub, pierhead, _folder) = hub(FakeRegistry::builder().token_auth(), "")?;
    let image = images()?.small;
    assert_eq!(
        get(pierhead.address(), "/v2/library/pierhead-small/manifests/1")?.status,
        200
    );
    for digest in image.documents() {
        assert_eq!(
            get(
                pierhead.address(),
                &format!("/v2/library/pierhead-small/manifests/{digest}")
            )?
            .status,
            200
        );
    }
    for digest in image.blobs() {
        assert_eq!(
            get(
                pierhead.address(),
                &format!("/v2/library/pierhead-small/blobs/{digest}")
            )?
            .status,
            200
        );
    }
    assert_eq!(hub.count(|it| it.role == Role::Tokens), 1);
    Ok(())
}

/// pierhead authenticates for a private repository, and no log contains the password.
#[test]
fn configured_credentials_are_used() -> Result<()> {
    let password = "a-password-that-is-in-no-log";
    let auth = TokenAuth {
        anonymous: false,
        users: vec![("pier".to_owned(), password.to_owned())],
        ..TokenAuth::default()
    };
    let hub_with_users = FakeRegistry::builder().with(|settings| settings.auth = Auth::Token(auth));
    let secret = paths::scratch("password")?;
    let file = secret.path().join("password");
    fs::write(&file, password)?;
    let keys = format!("username = \"pier\"\npassword_file = {file:?}\n[log]\nlevel = \"trace\"\n");
    let (_hub, pierhead, _folder) = hub(hub_with_users, &keys)?;
    assert_eq!(
        get(pierhead.address(), "/v2/library/pierhead-small/manifests/1")?.status,
        200
    );
    assert!(!pierhead.log().contains(password));
    Ok(())
}

/// After a 429 of the upstream, pierhead serves the stale copy, or an error other than 429.
#[test]
fn a_rate_limit_is_not_relayed() -> Result<()> {
    let limit = RateLimit {
        limit: 1,
        remaining: 1,
        window: 3600,
    };
    let limited = FakeRegistry::builder().with(|settings| settings.rate_limit = Some(limit));
    let (hub, pierhead, _folder) = hub(limited, "[tags]\nttl = \"0s\"")?;
    let image = images()?.small;
    assert_eq!(
        get(pierhead.address(), "/v2/library/pierhead-small/manifests/1")?.status,
        200
    );
    hub.configure(|settings| {
        settings.rate_limit = Some(RateLimit {
            remaining: 0,
            ..limit
        })
    });
    let stale = get(pierhead.address(), "/v2/library/pierhead-small/manifests/1")?;
    assert_eq!(stale.status, 200);
    assert_eq!(
        stale.header("docker-content-digest"),
        Some(image.root.as_str())
    );
    assert_eq!(
        get(pierhead.address(), "/v2/library/pierhead-large/manifests/1")?.status,
        503
    );
    Ok(())
}

/// CNCF distribution over TLS, with basic authentication.
#[test]
fn a_registry_with_tls_and_basic_authentication_works() -> Result<()> {
    if or_skip(registry::find()).is_none() || or_skip(Podman::find()).is_none() {
        return Ok(());
    }
    let folder = paths::scratch("registry-tls")?;
    let path = |name: &str| folder.path().join(name);
    let authority = Authority::new();
    let (certificate, key) = authority.issue(&["127.0.0.1".to_owned()]);
    fs::write(path("ca.pem"), authority.pem())?;
    fs::write(path("cert.pem"), certificate)?;
    fs::write(path("key.pem"), key)?;
    fs::write(path("password"), "behind the pier\n")?;
    // The bcrypt hash of the password above, with the minimum cost.
    fs::write(path("htpasswd"), format!("pier:{BCRYPT}\n"))?;
    let image = images()?.small;
    let mut registry = Registry::with(
        &[&image],
        Settings {
            tls: Some((path("cert.pem"), path("key.pem"))),
            auth: Some(json!({ "htpasswd": { "realm": "pier", "path": path("htpasswd") } })),
            ..Settings::default()
        },
    )?;
    let config = format!(
        "[upstreams.\"docker.io\"]\naddresses = {:?}\nca = {:?}\nusername = \"pier\"\npassword_file = {:?}\n",
        registry.url(),
        path("ca.pem"),
        path("password"),
    );
    let pierhead = Pierhead::start(Options::new().config(&config))?;
    let podman = Podman::with_mirror("docker.io", pierhead.address())?;
    let pulled = podman.pull(&image.name())?;
    assert_eq!(
        (&pulled.root, &pulled.config),
        (&image.root, &image.for_this_platform()?.config)
    );
    for (blob, count) in registry.blob_gets_of(&image.for_this_platform()?.blobs())? {
        assert_eq!(count, 1, "{blob}");
    }
    // pierhead does not send the credentials of a client to this upstream.
    let response = ask(
        pierhead.address(),
        &Request::get("/v2/library/pierhead-small/manifests/1")
            .header("authorization", "Basic d3Jvbmc6d3Jvbmc="),
    )?;
    assert_eq!(response.status, 200);
    Ok(())
}

const BCRYPT: &str = "$2b$04$XbUNk9AL3e6L3tyIL7YzW.fuQ/WS6UO7BNhvP7vZgcIyK.MXIKzB6";
