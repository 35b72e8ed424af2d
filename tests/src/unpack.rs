//! Who else unpacks images: what a root file system of ours is compared with.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    clients::{Client as _, Containerd},
    layout::{Image, Layout},
    place, process,
    registry::Registry,
    tool::{self, Missing},
    tree::Tree,
};

/// umoci's unpacking: a program of its own that knows no overlay and no daemon.
#[derive(Debug)]
pub struct Umoci(PathBuf);

impl Umoci {
    /// Where it is. As root only: others cannot make devices.
    pub fn find() -> Result<Self, Missing> {
        tool::root()?;
        tool::find(&["umoci"]).map(Self)
    }

    /// Whether it can: it reads manifests of OCI alone, and no layer that is compressed by zstd.
    pub fn understands(&self, image: &Image) -> Result<bool> {
        let manifest = fs::read(image.file(&image.here()?.digest))?;
        let manifest: Value = serde_json::from_slice(&manifest)?;
        let layers = manifest["layers"].as_array().context("no layers")?;
        let oci = manifest["config"]["mediaType"] == "application/vnd.oci.image.config.v1+json";
        let zstd = |layer: &Value| {
            layer["mediaType"]
                .as_str()
                .is_some_and(|it| it.ends_with("zstd"))
        };
        Ok(oci && !layers.iter().any(zstd))
    }

    /// The tree of this machine's platform.
    pub fn tree(&self, image: &Image) -> Result<Tree> {
        let folder = place::scratch("umoci")?;
        Tree::read(&self.unpack(image, folder.path())?)
    }

    /// Unpacks into a new folder in `folder`.
    pub fn unpack(&self, image: &Image, folder: &Path) -> Result<PathBuf> {
        const NAME: &str = "it";
        let digest = &image.here()?.digest;
        // umoci takes no name with a colon, and no index of several platforms: so a layout of one
        // manifest over the same blobs.
        let layout = Layout::create(&folder.join("layout"))?;
        let blobs = layout.folder().join("blobs");
        fs::remove_dir_all(&blobs)?;
        symlink(
            fs::canonicalize(image.layout().folder())?.join("blobs"),
            &blobs,
        )?;
        let descriptor = json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest,
            "size": image.file(digest).metadata()?.len(),
        });
        layout.name(&[(NAME.to_owned(), descriptor)])?;
        let root = folder.join("rootfs");
        let mut command = Command::new(&self.0);
        command
            .args(["--log", "warn", "raw", "unpack", "--image"])
            .arg(format!("{}:{NAME}", layout.folder().display()))
            .arg(&root);
        process::run(&mut command)?;
        Ok(root)
    }
}

/// Where containerd unpacks to.
#[derive(Clone, Copy, Debug)]
pub enum Snapshotter {
    /// What everybody uses: a layer beside the others. It cannot link to a file of a layer below, which
    /// only layers by hand do.
    Overlay,
    /// A copy of all below for each layer: slow, and it can.
    Native,
}

/// containerd's own unpacking, as its snapshotter shows it.
#[derive(Debug)]
pub struct Unpacker {
    containerd: Containerd,
    snapshotter: Snapshotter,
    mounts: TempDir,
    _registry: Registry,
}

impl Unpacker {
    /// What it needs.
    pub fn find() -> Result<(), Missing> {
        Containerd::find()?;
        crate::registry::find().map(drop)
    }

    /// With a registry that has these images.
    pub fn start(images: &[&Image], snapshotter: Snapshotter) -> Result<Self> {
        let registry = Registry::start(images)?;
        Ok(Self {
            snapshotter,
            containerd: Containerd::with_mirror("docker.io", registry.address())?,
            mounts: place::scratch("unpacked")?,
            _registry: registry,
        })
    }

    /// The tree of this machine's platform. Forgets the image afterwards.
    pub fn tree(&self, image: &Image) -> Result<Tree> {
        let at = tempfile::tempdir_in(self.mounts.path())?;
        let target = at.path().display().to_string();
        let name = format!("docker.io/{}", image.name());
        let snapshotter = match self.snapshotter {
            Snapshotter::Overlay => "overlayfs",
            Snapshotter::Native => "native",
        };
        let with = ["--snapshotter", snapshotter];
        let hosts = self.containerd.hosts();
        // By ctr itself: the daemon's own service unpacks to the default snapshotter alone.
        let pull = ["images", "pull", "--local", "--hosts-dir", &hosts, &name];
        self.containerd
            .ctr(&[&pull[..2], &with, &pull[2..]].concat())?;
        let mount = ["images", "mount", &name, &target];
        self.containerd
            .ctr(&[&mount[..2], &with, &mount[2..]].concat())?;
        let tree = Tree::read(at.path());
        self.containerd.ctr(&[
            "images",
            "unmount",
            "--rm",
            "--snapshotter",
            snapshotter,
            &target,
        ])?;
        self.containerd.empty()?;
        tree
    }
}

impl Drop for Unpacker {
    fn drop(&mut self) {
        process::unmount_below(self.mounts.path());
    }
}
