//! The measured programs (pierhead, nginx, distribution), and their configuration as a cache of one
//! upstream.

use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pierhead_tests::process;

use crate::client::Dial;
use crate::image::{Image, REPOSITORY};
use crate::nginx;
use crate::process::Process;
use crate::tls::Tls;
use crate::upstream::Upstream;

/// A measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// The program `pierhead`.
    Pierhead,
    /// nginx that serves the files by sendfile, as the upper limit.
    Nginx,
    /// CNCF distribution as a pull-through proxy.
    Distribution,
}

impl Kind {
    /// The name on the command line.
    pub(crate) fn argument(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pierhead => "pierhead",
            Self::Nginx => "nginx, sendfile from disk",
            Self::Distribution => "distribution, proxy",
        })
    }
}

/// An installed program.
pub(crate) struct Target {
    pub(crate) kind: Kind,
    program: PathBuf,
}

/// A running program with an empty cache. Dropping it deletes its folder.
pub(crate) struct Running {
    pub(crate) dial: Dial,
    pub(crate) process: Process,
    _folder: tempfile::TempDir,
}

impl Target {
    /// Finds a program; `None` when it is not installed.
    pub(crate) fn find(kind: Kind, pierhead: &Path) -> Result<Option<Self>> {
        let program = match kind {
            Kind::Pierhead if pierhead.exists() => Some(pierhead.to_owned()),
            Kind::Pierhead => bail!("{} is missing: cargo build --release", pierhead.display()),
            Kind::Nginx => on_path(&["nginx", "/usr/sbin/nginx"]),
            Kind::Distribution => on_path(&["registry", "docker-registry"]),
        };
        Ok(program.map(|program| Self { kind, program }))
    }

    /// Starts the program on a free port, and waits until it responds.
    pub(crate) fn start(
        &self,
        upstream: &Upstream,
        image: &Image,
        tls: Option<&Tls>,
    ) -> Result<Running> {
        self.start_with(upstream, image, tls, "")
    }

    /// As [`start`](Self::start), with additional lines for pierhead's configuration file.
    pub(crate) fn start_with(
        &self,
        upstream: &Upstream,
        image: &Image,
        tls: Option<&Tls>,
        settings: &str,
    ) -> Result<Running> {
        let folder = tempfile::Builder::new()
            .prefix("pierhead-bench")
            .tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let at = folder.path().display();
        let from = upstream.port();
        let mut command = process::command(&self.program);
        match self.kind {
            Kind::Pierhead => {
                command.args([
                    "serve",
                    "--listen",
                    &format!("127.0.0.1:{port}"),
                    "--admin",
                    "127.0.0.1:0",
                ]);
                command.args([
                    "--data",
                    &format!("{at}/data"),
                    "--upstream",
                    &format!("docker.io=http://127.0.0.1:{from}"),
                ]);
                let tls = tls.map(|tls| {
                    let (cert, key) = (tls.certificate.display(), tls.key.display());
                    format!("[tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n")
                });
                let settings = tls.unwrap_or_default() + settings;
                if !settings.is_empty() {
                    let config = folder.path().join("pierhead.toml");
                    fs::write(&config, settings)?;
                    command.arg("--config").arg(config);
                }
            }
            Kind::Distribution => {
                let tls = tls.map(|tls| {
                    let (cert, key) = (tls.certificate.display(), tls.key.display());
                    format!(", tls: {{certificate: {cert}, key: {key}}}")
                });
                let tls = tls.unwrap_or_default();
                let config = folder.path().join("config.yml");
                fs::write(
                    &config,
                    format!(
                        "version: 0.1\nlog: {{accesslog: {{disabled: true}}, level: warn}}\n\
                         storage: {{filesystem: {{rootdirectory: {at}/data}}, cache: {{blobdescriptor: inmemory}}, delete: {{enabled: true}}}}\n\
                         http: {{addr: 127.0.0.1:{port}{tls}}}\nproxy: {{remoteurl: http://127.0.0.1:{from}, ttl: 168h}}\n"
                    ),
                )?;
                command
                    .arg("serve")
                    .arg(config)
                    .env("OTEL_TRACES_EXPORTER", "none");
            }
            Kind::Nginx => {
                let root = folder.path().join("root/v2").join(REPOSITORY);
                for (name, digest) in [("blobs", image.blob), ("manifests", image.manifest)] {
                    fs::create_dir_all(root.join(name))?;
                    std::os::unix::fs::symlink(
                        image.blobs.join(digest.hex()),
                        root.join(name).join(digest.to_string()),
                    )?;
                }
                let root = folder.path().join("root");
                command = nginx::command(&self.program, folder.path(), &root, port, tls)?;
            }
        }
        let mut process = Process::spawn(&mut command)?;
        process
            .listens(port)
            .with_context(|| self.kind.to_string())?;
        Ok(Running {
            dial: Dial::loopback(port, tls.map(Tls::client)),
            process,
            _folder: folder,
        })
    }
}

/// Returns the first of these programs that is installed.
pub(crate) fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| {
        folders
            .iter()
            .map(|folder| folder.join(name))
            .find(|file| file.exists())
    })
}
