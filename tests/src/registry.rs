//! Runs a real registry (CNCF distribution) as the upstream, and reads its access log.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    layout::Image,
    paths,
    process::{self, Daemon},
    tool::{self, Missing},
};

/// Finds the program of the registry: Distribution version 3 from `go install`, or else Debian's
/// package of version 2.
pub fn find() -> Result<PathBuf, Missing> {
    tool::find(&["registry", "docker-registry"])
}

/// A running registry with some images.
#[derive(Debug)]
pub struct Registry {
    daemon: Daemon,
    address: SocketAddr,
    folder: TempDir,
    settings: Settings,
}

/// Optional settings of a registry.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Certificate and key in PEM files, for HTTPS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The `auth` table of its configuration, for a registry with authentication.
    pub auth: Option<Value>,
    /// The URL of the upstream, for a registry that is a pull-through cache.
    pub proxy: Option<String>,
}

impl Registry {
    /// Starts a plain HTTP registry with these images.
    pub fn start(images: &[&Image]) -> Result<Self> {
        Self::with(images, Settings::default())
    }

    /// Starts a registry with these images and settings.
    pub fn with(images: &[&Image], settings: Settings) -> Result<Self> {
        let folder = paths::scratch("registry")?;
        for image in images {
            store(folder.path(), image)?;
        }
        let (daemon, address) = serve(folder.path(), &settings, 0)?;
        Ok(Self {
            daemon,
            address,
            folder,
            settings,
        })
    }

    /// The address on which the registry listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the registry.
    pub fn url(&self) -> String {
        let scheme = if self.settings.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.address)
    }

    /// Adds an image (or tag).
    pub fn add(&self, image: &Image) -> Result<()> {
        store(self.folder.path(), image)
    }

    /// Stops the registry, so that connections are refused.
    pub fn stop(&mut self) -> Result<()> {
        // Distribution may exit by the signal or with an exit status. The test accepts both.
        self.daemon.terminate().map(drop)
    }

    /// Starts the registry again at the same address.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        (self.daemon, self.address) =
            serve(self.folder.path(), &self.settings, self.address.port())?;
        Ok(())
    }

    /// Every request in the access log. The registry writes the log line of a request at the end of
    /// the response.
    pub fn requests(&self) -> Vec<Request> {
        self.daemon
            .log()
            .lines()
            .filter_map(Request::parse)
            .collect()
    }

    /// Number of successful GETs of each blob, by digest.
    pub fn blob_gets(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in self.requests() {
            if let Some(digest) = request.blob_get() {
                *counts.entry(digest.to_owned()).or_default() += 1;
            }
        }
        counts
    }

    /// Waits until the log has a successful GET of each of these blobs. Returns the number of GETs
    /// by digest.
    pub fn blob_gets_of(&mut self, blobs: &[String]) -> Result<BTreeMap<String, usize>> {
        self.daemon.until("a GET of every blob in its log", |log| {
            let requests: Vec<Request> = log.lines().filter_map(Request::parse).collect();
            let seen = |blob: &String| {
                requests
                    .iter()
                    .any(|request| request.blob_get() == Some(blob))
            };
            Ok(blobs.iter().all(seen).then_some(()))
        })?;
        Ok(self.blob_gets())
    }
}

/// A line of the access log.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub uri: String,
    /// Status of the response.
    pub status: u16,
}

impl Request {
    /// Parses a line of the combined log format: `address - - [time] "GET /v2/ HTTP/1.1" 200 2 …`.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("] \"")?;
        let (request, rest) = rest.split_once("\" ")?;
        let mut words = request.split(' ');
        Some(Self {
            method: words.next()?.to_owned(),
            uri: words.next()?.to_owned(),
            status: rest.split(' ').next()?.parse().ok()?,
        })
    }

    /// The digest of the blob, when the request is a successful GET of a blob or of a range.
    pub fn blob_get(&self) -> Option<&str> {
        let path = self.uri.split('?').next()?;
        let (_, digest) = path.split_once("/blobs/")?;
        (self.method == "GET" && matches!(self.status, 200 | 206)).then_some(digest)
    }
}

/// Stores an image in the folder of the filesystem driver by hard links, without a push or a copy.
fn store(folder: &Path, image: &Image) -> Result<()> {
    let root = folder.join("docker/registry/v2");
    let repository = root.join("repositories").join(&image.repository);
    let link = |path: PathBuf, digest: &str| -> Result<()> {
        fs::create_dir_all(&path)?;
        Ok(fs::write(path.join("link"), digest)?)
    };
    for digest in image.blobs() {
        blob(&root, image, &digest)?;
        link(repository.join("_layers").join(as_path(&digest)), &digest)?;
    }
    for digest in image.documents() {
        blob(&root, image, &digest)?;
        link(
            repository
                .join("_manifests/revisions")
                .join(as_path(&digest)),
            &digest,
        )?;
    }
    let tag = repository.join("_manifests/tags").join(&image.tag);
    link(tag.join("index").join(as_path(&image.root)), &image.root)?;
    link(tag.join("current"), &image.root)
}

fn blob(root: &Path, image: &Image, digest: &str) -> Result<()> {
    let (algorithm, hex) = digest
        .split_once(':')
        .context("a digest without an algorithm")?;
    let folder = root.join("blobs").join(algorithm).join(&hex[..2]).join(hex);
    fs::create_dir_all(&folder)?;
    let data = folder.join("data");
    if data.exists() {
        return Ok(());
    }
    let file = image.file(digest);
    if fs::hard_link(&file, &data).is_err() {
        fs::copy(&file, &data).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn as_path(digest: &str) -> String {
    digest.replacen(':', "/", 1)
}

fn serve(folder: &Path, settings: &Settings, port: u16) -> Result<(Daemon, SocketAddr)> {
    let program = find()?;
    let mut http = json!({ "addr": format!("127.0.0.1:{port}"), "secret": "unused" });
    if let Some((certificate, key)) = &settings.tls {
        http["tls"] = json!({ "certificate": certificate, "key": key });
    }
    let mut config = json!({
        "version": 0.1,
        "log": { "level": "info", "accesslog": { "disabled": false } },
        "storage": {
            "filesystem": { "rootdirectory": folder },
            // Disables the purge of uploads, which walks over all files after the start.
            "maintenance": { "uploadpurging": { "enabled": false } },
            "delete": { "enabled": true },
        },
        "http": http,
        // Enables optional parts of the specification: layers with external URLs, and indexes with
        // missing manifests.
        "validation": { "manifests": {
            "urls": { "allow": ["^https://"] },
            "indexes": { "platforms": "none" },
        } },
    });
    if let Some(auth) = &settings.auth {
        config["auth"] = auth.clone();
    }
    if let Some(url) = &settings.proxy {
        config["proxy"] = json!({ "remoteurl": url });
    }
    let file = folder.join("config.yml");
    // The registry accepts JSON, since JSON is a subset of YAML.
    fs::write(&file, config.to_string())?;
    let log = folder.join("log");
    // Keeps the log of an earlier run, so that its requests count too.
    let before = fs::read_to_string(&log).unwrap_or_default().len();
    let mut command = process::command(&program);
    command
        .arg("serve")
        .arg(&file)
        .env("OTEL_TRACES_EXPORTER", "none");
    let mut daemon = Daemon::start("registry", &mut command, &log)?;
    let address = daemon.until("listening", |log| {
        let address = log[before..]
            .split_once("listening on ")
            .and_then(|(_, rest)| rest.split([',', '"']).next());
        Ok(address.and_then(|it| it.trim().parse().ok()))
    })?;
    Ok((daemon, address))
}
