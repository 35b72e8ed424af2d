//! The servers of the fault matrix: upstreams, the origin as the fallback of clients, a relay
//! between client and pierhead, and a data folder with the image.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use pierhead_testkit::registry::{Auth, Background, FakeRegistry};
use pierhead_tests::{
    clients::PullResult,
    image::images,
    layout::Image,
    paths,
    pierhead::{Options, Pierhead},
    process,
    relay::Relay,
};
use tempfile::TempDir;

use super::{State, Wires, faults::Fault};

pub(super) struct Stage {
    /// The upstream into which faults are injected.
    pub(super) hub: Background,
    /// The second address of the upstream, which always works.
    second: Background,
    /// A stopped upstream.
    pub(super) gone: Background,
    /// Upstreams with an expired certificate, a certificate for another name, and a valid
    /// certificate.
    pub(super) expired: Background,
    pub(super) misnamed: Background,
    pub(super) secure: Background,
    /// The registry itself, which always works.
    pub(super) origin: Background,
    proxy: Relay,
    /// The relay between the client and pierhead.
    pub(super) mirror: Relay,
    pub(super) image: Image,
    pub(super) expected: PullResult,
    folder: TempDir,
}

impl Stage {
    pub(super) fn set(origin: Background) -> Result<Self> {
        let image = images()?.small;
        let start = FakeRegistry::builder;
        let stage = Self {
            hub: start().start_in_background(),
            second: start().start_in_background(),
            gone: start().start_in_background(),
            expired: start().tls().tls_expired().start_in_background(),
            misnamed: start()
                .tls_for(&["elsewhere.example"])
                .start_in_background(),
            secure: start().tls().start_in_background(),
            proxy: Relay::proxy_to(origin.addr())?,
            mirror: Relay::to(origin.addr())?,
            origin,
            expected: PullResult {
                root: image.root.clone(),
                config: image.for_this_platform()?.config.clone(),
            },
            image,
            folder: paths::scratch("matrix")?,
        };
        stage.gone.stop();
        for registry in [
            &stage.hub,
            &stage.second,
            &stage.expired,
            &stage.misnamed,
            &stage.secure,
            &stage.origin,
        ] {
            registry.push_layout(stage.image.layout().folder())?;
        }
        for (name, registry) in [
            ("expired.pem", &stage.expired),
            ("misnamed.pem", &stage.misnamed),
            ("secure.pem", &stage.secure),
        ] {
            fs::write(stage.path(name), registry.ca_pem())?;
        }
        if stage.origin.url().starts_with("https") {
            fs::write(stage.path("origin.pem"), stage.origin.ca_pem())?;
        }
        stage.warm()?;
        Ok(stage)
    }

    /// Fills a data folder with the image. Every cell begins with a copy of this folder.
    fn warm(&self) -> Result<()> {
        let options = Options::new()
            .upstream("docker.io", &self.hub.url())
            .data(&self.path("warm"));
        let mut pierhead = Pierhead::start(options)?;
        pierhead.cache(&["warm", &format!("docker.io/{}", self.image.name())])?;
        pierhead.stop()?;
        let holed = self.path("holed");
        copy(&self.path("warm"), &holed)?;
        // Removes a layer of every platform, because a complete image of another platform could
        // serve the pull.
        for manifest in &self.image.manifests {
            let layer = manifest.layers.get(1).context("a second layer")?;
            let blob = pierhead.blob(layer);
            fs::remove_file(holed.join(blob.strip_prefix(self.path("warm"))?))?;
        }
        Ok(())
    }

    pub(super) fn wires(&self) -> Wires<'_> {
        Wires {
            mirror: self.mirror.address(),
            origin: &self.origin,
            proxy: self.proxy.address(),
            authority: self.path("origin.pem"),
        }
    }

    /// The path of a file of this stage.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The digest of a layer of some 300 kB.
    pub(super) fn layer(&self) -> Result<&str> {
        let layer = self
            .image
            .for_this_platform()?
            .layers
            .get(1)
            .context("a second layer")?;
        Ok(layer)
    }

    /// The digest of a layer of some 40 kB.
    pub(super) fn small_layer(&self) -> Result<&str> {
        let layer = self
            .image
            .for_this_platform()?
            .layers
            .get(2)
            .context("a third layer")?;
        Ok(layer)
    }

    /// Starts a pierhead with this cache state and upstream fault, as the target of the relay.
    pub(super) fn pierhead(&self, fault: &Fault, state: State) -> Result<Pierhead> {
        self.hub.clear_faults();
        self.hub.configure(|settings| settings.auth = Auth::Open);
        self.hub.restart();
        let data = self.path("data");
        let _ = fs::remove_dir_all(&data);
        match state {
            State::Cold | State::Second => {}
            State::Fresh | State::Stale => copy(&self.path("warm"), &data)?,
            State::Holed => copy(&self.path("holed"), &data)?,
        }
        let ttl = if state == State::Fresh { "1h" } else { "0s" };
        let limits = if fault.defaults {
            ""
        } else {
            // The time limit of a response is close to the default, so that a working address has
            // enough time on a busy machine.
            "[limits]\nresponse_timeout = \"4500ms\"\nupstream_timeout = \"1s\"\n"
        };
        let mut upstream = (fault.set)(self)?;
        if state == State::Second {
            let (url, rest) = upstream.split_once('\n').unwrap_or((&upstream, ""));
            let first = url.trim_start_matches("addresses = ");
            let second = self.second.url();
            upstream = format!("addresses = [{first}, {second:?}]\n{rest}");
        }
        let config =
            format!("[tags]\nttl = \"{ttl}\"\n{limits}[upstreams.\"docker.io\"]\n{upstream}\n");
        let pierhead = Pierhead::start(Options::new().data(&data).config(&config))?;
        self.mirror.set_target(pierhead.address());
        self.hub.clear_requests();
        self.origin.clear_requests();
        self.mirror.take();
        Ok(pierhead)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    process::run(Command::new("cp").arg("-a").args([from, to])).map(drop)
}
