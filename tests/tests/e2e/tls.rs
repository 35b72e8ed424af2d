//! End-to-end tests of TLS for clients: pulls over HTTPS, client certificates, and the reload of
//! certificates.
#![expect(clippy::disallowed_methods, reason = "moves a file of the test")]

use std::{fs, net::SocketAddr};

use anyhow::Result;
use pierhead_testkit::http::{Connection, Request, Response};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, PullResult, Skopeo},
    image::images,
    paths,
    pierhead::{Options, Pierhead},
    registry::{self, Registry},
    tool::or_skip,
    wait,
};

use crate::{bundles, certificates::Files};

/// Sends a GET over TLS. Trusts only the CA `ca`.
pub(crate) fn get(addr: SocketAddr, path: &str, ca: &str) -> Result<Response> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(async {
        Connection::open_tls(addr, "127.0.0.1", ca)
            .await?
            .exchange(&Request::get(path))
            .await
    })?)
}

/// Pulls the small image twice by one client. The upstream is stopped before the second pull.
fn pull_twice<C: Client>(
    files: &Files,
    more: &str,
    client: impl FnOnce(SocketAddr) -> Result<C>,
) -> Result<()> {
    let image = images()?.small;
    let mut registry = Registry::start(&[&image])?;
    let config = format!("{}\n{more}", files.tls());
    let pierhead = Pierhead::start(
        Options::new()
            .upstream("docker.io", &registry.url())
            .config(&config),
    )?;
    let client = client(pierhead.address())?;
    let expected = PullResult {
        root: image.root.clone(),
        config: image.for_this_platform()?.config.clone(),
    };
    assert_eq!(client.pull(&image.name())?, expected);
    client.empty()?;
    registry.stop()?;
    assert_eq!(client.pull(&image.name())?, expected);
    Ok(())
}

/// Docker tries HTTPS first for a registry on a loopback address, and accepts any certificate of
/// such a registry.
#[test]
fn docker_pulls_over_tls() -> Result<()> {
    if or_skip(Docker::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    pull_twice(&Files::new()?, "", |pierhead| {
        Docker::with_path(pierhead, "docker.io")
    })
}

#[test]
fn containerd_pulls_over_tls() -> Result<()> {
    if or_skip(Containerd::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    let keys = format!("ca = {:?}", files.path("ca.crt"));
    pull_twice(&files, "", |pierhead| {
        Containerd::start("docker.io", &format!("https://{pierhead}"), &keys)
    })
}

/// pierhead accepts only clients with a certificate of the configured CA.
#[test]
fn containerd_pulls_with_a_client_certificate() -> Result<()> {
    if or_skip(Containerd::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    files.issue("client", &["vm-1"])?;
    let mutual = format!("client_ca = {:?}", files.path("ca.crt"));
    let ca = format!("ca = {:?}", files.path("ca.crt"));
    let keys = format!(
        "{ca}\nclient = [[{:?}, {:?}]]",
        files.path("client.cert"),
        files.path("client.key")
    );
    pull_twice(&files, &mutual, |pierhead| {
        assert!(
            get(pierhead, "/v2/", files.ca()).is_err(),
            "allowed without a certificate"
        );
        Containerd::start("docker.io", &format!("https://{pierhead}"), &keys)
    })
}

/// `pierhead pull` sends a client certificate.
#[test]
fn a_worker_pulls_with_a_client_certificate() -> Result<()> {
    let files = Files::new()?;
    files.issue("client", &["worker-1"])?;
    let tls = format!(
        "{}client_ca = {:?}\n[auth]\nmode = \"mtls\"\n",
        files.tls(),
        files.path("ca.crt")
    );
    let (_hub, pierhead) = bundles::stage(Options::new().config(&tls))?;
    let via = format!("https://{}", pierhead.address());
    let folder = paths::scratch("worker")?;
    let shown = |name: &str| files.path(name).display().to_string();
    let (ca, cert, key) = (shown("ca.crt"), shown("client.cert"), shown("client.key"));
    let trusting = ["--ca", &ca];
    let refused = bundles::pull(&via, "1", &folder.path().join("none"), &trusting);
    assert!(refused.is_err(), "allowed without a certificate");
    let words = [trusting, ["--cert", &cert], ["--key", &key]].concat();
    bundles::pull(&via, "1", &folder.path().join("store"), &words)?;
    Ok(())
}

#[test]
fn skopeo_pulls_over_tls() -> Result<()> {
    if or_skip(Skopeo::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    let image = images()?.small;
    let registry = Registry::start(&[&image])?;
    let pierhead = Pierhead::start(
        Options::new()
            .upstream("docker.io", &registry.url())
            .config(&files.tls()),
    )?;
    let skopeo = Skopeo::with_path(pierhead.address(), "docker.io")?;
    // skopeo looks for a client certificate in the folder with the CA.
    let folder = files.trusted()?.display().to_string();
    let (root, _) = skopeo.copy(&image.name(), true, &["--src-cert-dir", &folder])?;
    assert_eq!(root, image.root);
    Ok(())
}

/// pierhead uses a new certificate without a restart. If the new certificate is invalid, pierhead
/// continues to use the old certificate.
#[test]
fn a_renewed_certificate_is_used_without_a_restart() -> Result<()> {
    let (files, others) = (Files::new()?, Files::new()?);
    let pierhead = Pierhead::start(Options::new().config(&files.tls()))?;
    let address = pierhead.address();
    assert_eq!(get(address, "/v2/", files.ca())?.status, 200);
    assert!(get(address, "/v2/", others.ca()).is_err());
    for name in ["server.key", "server.cert"] {
        // Replaces each file by a rename, as renewal tools do.
        let next = files.path("next");
        fs::copy(others.path(name), &next)?;
        fs::rename(&next, files.path(name))?;
    }
    wait::try_until("the new certificate", || {
        Ok(get(address, "/v2/", others.ca()).ok())
    })?;
    assert!(get(address, "/v2/", files.ca()).is_err());
    Ok(())
}
