//! pierhead behind TLS: real clients, certificates that change, clients that must show one.

use std::{fs, net::SocketAddr};

use anyhow::Result;
use pierhead_testkit::http::{Connection, Request, Response};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, Pulled, Skopeo},
    image::images,
    pierhead::{Options, Pierhead},
    place,
    registry::{self, Registry},
    tool::or_skip,
    wait,
};

use crate::{bundles, certified::Files};

/// GET over TLS, trusting this authority only.
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

/// The small image through `client`, twice, the second time without an upstream.
fn story<C: Client>(
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
    let expected = Pulled {
        root: image.root.clone(),
        config: image.here()?.config.clone(),
    };
    assert_eq!(client.pull(&image.name())?, expected);
    client.empty()?;
    registry.stop()?;
    assert_eq!(client.pull(&image.name())?, expected);
    Ok(())
}

/// Docker tries HTTPS first with a registry on loopback, and takes any certificate there.
#[test]
fn docker() -> Result<()> {
    if or_skip(Docker::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    story(&Files::new()?, "", |pierhead| {
        Docker::with_path(pierhead, "docker.io")
    })
}

#[test]
fn containerd() -> Result<()> {
    if or_skip(Containerd::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let files = Files::new()?;
    let keys = format!("ca = {:?}", files.path("ca.crt"));
    story(&files, "", |pierhead| {
        Containerd::start("docker.io", &format!("https://{pierhead}"), &keys)
    })
}

/// Only who has a certificate of the authority is let in.
#[test]
fn containerd_with_a_certificate_of_its_own() -> Result<()> {
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
    story(&files, &mutual, |pierhead| {
        assert!(
            get(pierhead, "/v2/", files.ca()).is_err(),
            "let in without a certificate"
        );
        Containerd::start("docker.io", &format!("https://{pierhead}"), &keys)
    })
}

/// The same of `pierhead pull`.
#[test]
fn a_worker_with_a_certificate_of_its_own() -> Result<()> {
    let files = Files::new()?;
    files.issue("client", &["worker-1"])?;
    let tls = format!(
        "{}client_ca = {:?}\n[auth]\nmode = \"mtls\"\n",
        files.tls(),
        files.path("ca.crt")
    );
    let (_hub, pierhead) = bundles::stage(Options::new().config(&tls))?;
    let via = format!("https://{}", pierhead.address());
    let folder = place::scratch("worker")?;
    let shown = |name: &str| files.path(name).display().to_string();
    let (ca, cert, key) = (shown("ca.crt"), shown("client.cert"), shown("client.key"));
    let trusting = ["--ca", &ca];
    let refused = bundles::pull(&via, "1", &folder.path().join("none"), &trusting);
    assert!(refused.is_err(), "let in without a certificate");
    let words = [trusting, ["--cert", &cert], ["--key", &key]].concat();
    bundles::pull(&via, "1", &folder.path().join("store"), &words)?;
    Ok(())
}

#[test]
fn skopeo() -> Result<()> {
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
    // It looks for a client's certificate in the same folder.
    let folder = files.trusted()?.display().to_string();
    let (root, _) = skopeo.copy(&image.name(), true, &["--src-cert-dir", &folder])?;
    assert_eq!(root, image.root);
    Ok(())
}

/// A new certificate is used without a restart; a broken one is not, and nothing is lost by it.
#[test]
fn a_certificate_is_renewed() -> Result<()> {
    let (files, others) = (Files::new()?, Files::new()?);
    let pierhead = Pierhead::start(Options::new().config(&files.tls()))?;
    let address = pierhead.address();
    assert_eq!(get(address, "/v2/", files.ca())?.status, 200);
    assert!(get(address, "/v2/", others.ca()).is_err());
    for name in ["server.key", "server.cert"] {
        // As tools do it that renew: each file is replaced as a whole.
        let next = files.path("next");
        fs::copy(others.path(name), &next)?;
        fs::rename(&next, files.path(name))?;
    }
    wait::until("the new certificate", || {
        Ok(get(address, "/v2/", others.ca()).ok())
    })?;
    assert!(get(address, "/v2/", files.ca()).is_err());
    Ok(())
}
