//! End-to-end tests of client authentication: htpasswd users, client certificates, and pass-through
//! (pierhead sends the client's own credentials to the upstream, which decides).

use std::{fs, net::SocketAddr};

use anyhow::Result;
use pierhead_testkit::registry::{Auth, FakeRegistry, TokenAuth};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, Podman, Skopeo},
    image::images,
    layout::Image,
    pierhead::{Options, Pierhead},
    registry::{self, Registry},
    tool::or_skip,
};

use crate::{certificates::Files, requests::get};

const ANN: [&str; 2] = ["ann", "right-password"];
const BOB: [&str; 2] = ["bob", "some-other-word"];

/// Creates certificates, an htpasswd file, and a policy for podman.
fn files() -> Result<Files> {
    let files = Files::new()?;
    let hash = bcrypt::hash(ANN[1], 5)?;
    fs::write(files.path("users"), format!("{}:{hash}\n", ANN[0]))?;
    let anything = r#"{"default":[{"type":"insecureAcceptAnything"}]}"#;
    fs::write(files.path("policy.json"), anything)?;
    Ok(files)
}

fn htpasswd(files: &Files) -> String {
    let users = files.path("users");
    format!("[auth]\nmode = \"htpasswd\"\nhtpasswd = {users:?}\n")
}

/// Pulls by podman with these arguments.
fn pull_by(podman: &Podman, files: &Files, name: &str, words: &[&str]) -> Result<()> {
    let policy = files.path("policy.json").display().to_string();
    let fixed = ["pull", "--quiet", "--signature-policy", &policy];
    podman.podman(&[&fixed, words, &[name]].concat()).map(drop)
}

/// A pull by one client, with or without credentials. The client stores nothing between pulls.
type Pull<'a> = Box<dyn Fn(Option<[&str; 2]>) -> Result<()> + 'a>;

/// Every installed client, pulling `image` of Docker Hub through pierhead. `scheme` is for
/// containerd; the other clients detect it.
fn clients<'a>(
    files: &'a Files,
    image: &'a Image,
    pierhead: SocketAddr,
    scheme: &str,
) -> Result<Vec<(&'static str, Pull<'a>)>> {
    let by_path = format!("{pierhead}/docker.io/{}", image.name());
    let mut all: Vec<(&'static str, Pull<'a>)> = Vec::new();
    if or_skip(Docker::find()).is_some() {
        let docker = Docker::with_path(pierhead, "docker.io")?;
        all.push((
            "docker",
            Box::new(move |login| {
                let host = pierhead.to_string();
                if let Some([user, password]) = login {
                    docker.docker(&["login", "-u", user, "-p", password, &host])?;
                }
                let pulled = docker.pull(&image.name());
                docker.docker(&["logout", &host])?;
                docker.empty()?;
                pulled.map(drop)
            }),
        ));
    }
    if or_skip(Podman::find()).is_some() {
        let podman = Podman::with_mirror("nobody.example", pierhead)?;
        let name = by_path.clone();
        all.push((
            "podman",
            Box::new(move |login| {
                let creds = login.map(|[user, password]| format!("--creds={user}:{password}"));
                let mut words = vec!["--tls-verify=false"];
                words.extend(creds.as_deref());
                let pulled = pull_by(&podman, files, &name, &words);
                podman.empty()?;
                pulled
            }),
        ));
    }
    if or_skip(Skopeo::find()).is_some() {
        let skopeo = Skopeo::with_path(pierhead, "docker.io")?;
        all.push((
            "skopeo",
            Box::new(move |login| {
                let creds = login.map(|[user, password]| format!("--src-creds={user}:{password}"));
                let mut words = vec!["--src-tls-verify=false"];
                words.extend(creds.as_deref());
                skopeo.copy(&image.name(), false, &words).map(drop)
            }),
        ));
    }
    if or_skip(Containerd::find()).is_some() {
        let keys = format!("ca = {:?}", files.path("ca.crt"));
        let containerd = Containerd::start("docker.io", &format!("{scheme}://{pierhead}"), &keys)?;
        let name = format!("docker.io/{}", image.name());
        all.push((
            "containerd",
            Box::new(move |login| {
                let hosts = containerd.hosts();
                let login = login.map(|pair| pair.join(":"));
                let mut words = vec!["images", "pull", "--hosts-dir", &hosts];
                if let Some(login) = &login {
                    words.extend(["--user", login.as_str()]);
                }
                words.push(&name);
                let pulled = containerd.ctr(&words);
                containerd.empty()?;
                pulled.map(drop)
            }),
        ));
    }
    Ok(all)
}

/// Tests passwords over TLS, and over plain HTTP from a loopback address.
#[test]
fn only_users_of_the_htpasswd_file_may_pull() -> Result<()> {
    if or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let (files, image) = (files()?, images()?.small);
    let registry = Registry::start(&[&image])?;
    for (scheme, tls) in [("https", files.tls()), ("http", String::new())] {
        let config = format!("{tls}{}", htpasswd(&files));
        let options = Options::new()
            .upstream("docker.io", &registry.url())
            .config(&config);
        let pierhead = Pierhead::start(options)?;
        for (name, pull) in clients(&files, &image, pierhead.address(), scheme)? {
            assert!(
                pull(None).is_err(),
                "{name} over {scheme}: allowed without credentials"
            );
            pull(Some(ANN)).map_err(|error| error.context(format!("{name} over {scheme}")))?;
            assert!(
                pull(Some(BOB)).is_err(),
                "{name} over {scheme}: bob is allowed"
            );
        }
    }
    Ok(())
}

/// Pass-through: each client needs its own upstream credentials, also for cached images.
#[test]
fn pass_through_checks_the_upstream_credentials_of_each_client() -> Result<()> {
    let (files, image) = (files()?, images()?.small);
    let rules = TokenAuth {
        users: vec![(ANN[0].to_owned(), ANN[1].to_owned())],
        private: vec![image.repository.clone()],
        ..TokenAuth::default()
    };
    let hub = FakeRegistry::builder()
        .with(|settings| settings.auth = Auth::Token(rules))
        .start_in_background();
    hub.push_layout(image.layout().folder())?;
    let config = format!(
        "{}[auth]\nmode = \"pass-through-login\"\n[upstreams.\"docker.io\"]\naddresses = {:?}\ntrusted_hosts = [\"http://{}\"]\n",
        files.tls(),
        hub.url(),
        hub.token_addr()
    );
    let pierhead = Pierhead::start(Options::new().config(&config))?;
    for (name, pull) in clients(&files, &image, pierhead.address(), "https")? {
        assert!(pull(None).is_err(), "{name}: allowed without credentials");
        assert!(pull(Some(BOB)).is_err(), "{name}: bob is allowed");
        pull(Some(ANN)).map_err(|error| error.context(name))?;
        assert!(
            pull(Some(BOB)).is_err(),
            "{name}: bob may pull a cached image"
        );
    }
    Ok(())
}

/// podman sends a client certificate from its folder `certs.d`. pierhead refuses a certificate with
/// an unexpected name, and logs the reason.
#[test]
fn podman_authenticates_by_client_certificate() -> Result<()> {
    if or_skip(Podman::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let (files, image) = (files()?, images()?.small);
    let registry = Registry::start(&[&image])?;
    let config = format!(
        "{}client_ca = {:?}\nclient_names = [\"vm-1\"]\n[auth]\nmode = \"mtls\"\n",
        files.tls(),
        files.path("ca.crt")
    );
    let options = Options::new()
        .upstream("docker.io", &registry.url())
        .config(&config);
    let mut pierhead = Pierhead::start(options)?;
    let address = pierhead.address();
    let podman = Podman::with_mirror("nobody.example", address)?;
    let name = format!("{address}/docker.io/{}", image.name());
    let trusted = files.trusted()?;
    let folder = format!("--cert-dir={}", trusted.display());
    assert!(
        pull_by(&podman, &files, &name, &[&folder]).is_err(),
        "without a certificate"
    );
    for (client, expected) in [("vm-2", false), ("vm-1", true)] {
        files.issue("trusted/client", &[client])?;
        let pulled = pull_by(&podman, &files, &name, &[&folder]);
        assert_eq!(pulled.is_ok(), expected, "{client}: {pulled:?}");
    }
    for text in [
        "presented no certificate",
        "none of the names in tls.client_names",
    ] {
        pierhead
            .daemon()
            .until(text, |log| Ok(log.contains(text).then_some(())))?;
    }
    Ok(())
}

/// A configuration without `[auth]`: clients need no credentials.
#[test]
fn no_credentials_are_needed_by_default() -> Result<()> {
    let pierhead = Pierhead::start(Options::new())?;
    let response = get(pierhead.address(), "/v2/")?;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("www-authenticate"), None);
    Ok(())
}
