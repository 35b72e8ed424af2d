//! Unpacks images by umoci and containerd, to compare their root file systems with those of
//! pierhead.

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
    paths, process,
    registry::Registry,
    tool::{self, Missing},
    tree::Tree,
};

/// The umoci program, which unpacks images without an overlay and a daemon.
#[derive(Debug)]
pub struct Umoci(PathBuf);

impl Umoci {
    /// Finds umoci. Needs root, since other users cannot create devices.
    pub fn find() -> Result<Self, Missing> {
        tool::root()?;
        tool::find(&["umoci"]).map(Self)
    }

    /// Whether umoci supports the image: it supports only OCI manifests, and no layers compressed
    /// by zstd.
    pub fn understands(&self, image: &Image) -> Result<bool> {
        let manifest = fs::read(image.file(&image.for_this_platform()?.digest))?;
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

    /// Unpacks the image of this machine's platform, and reads its tree.
    pub fn tree(&self, image: &Image) -> Result<Tree> {
        let folder = paths::scratch("umoci")?;
        Tree::read(&self.unpack(image, folder.path())?)
    }

    /// Unpacks into a new folder in `folder`.
    pub fn unpack(&self, image: &Image, folder: &Path) -> Result<PathBuf> {
        const NAME: &str = "it";
        let digest = &image.for_this_platform()?.digest;
        // umoci accepts no name with a colon and no index of several platforms. Therefore umoci
        // gets a separate layout with one manifest and the same blobs.
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

/// The snapshotter of containerd.
#[derive(Clone, Copy, Debug)]
pub enum Snapshotter {
    /// The snapshotter overlayfs, the default: one folder per layer. overlayfs cannot make a hard
    /// link to a file of a lower layer. Only handmade layers contain such links.
    Overlay,
    /// The snapshotter native: a full copy of the lower layers for each layer. native is slow, and
    /// supports hard links to files of lower layers.
    Native,
}

/// A containerd that unpacks images into its snapshotter.
#[derive(Debug)]
pub struct Unpacker {
    containerd: Containerd,
    snapshotter: Snapshotter,
    mounts: TempDir,
    _registry: Registry,
}

impl Unpacker {
    /// Checks that this machine has the programs that containerd's unpacking needs.
    pub fn find() -> Result<(), Missing> {
        Containerd::find()?;
        crate::registry::find().map(drop)
    }

    /// Starts containerd and a registry with these images.
    pub fn start(images: &[&Image], snapshotter: Snapshotter) -> Result<Self> {
        let registry = Registry::start(images)?;
        Ok(Self {
            snapshotter,
            containerd: Containerd::with_mirror("docker.io", registry.address())?,
            mounts: paths::scratch("unpacked")?,
            _registry: registry,
        })
    }

    /// Unpacks the image of this machine's platform, reads its tree, and removes the
    /// image from containerd.
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
        // `ctr --local` unpacks in its own process, because the daemon's service supports only the
        // default snapshotter.
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
