//! Writes the container image as an OCI layout with an index of both platforms, and checks the
//! result.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    elf::Elf,
    hex,
    rootfs::{LICENSES, PROGRAM, Rootfs, USER},
};
use crate::{
    exec,
    image::{
        layer::{Node, Tree},
        layout::{Dialect, Layout, Packing},
    },
    paths,
};

/// Maximum size in bytes of the compressed layers of a release image. A DPU with a small eMMC has
/// this much space.
pub(crate) const MAX_RELEASE: u64 = 20_000_000;

/// The maximum size of the image of one platform, for an unoptimized program without symbols. With
/// gzip, such a program had 13.8 MB when the release had 10.0 MB (`cargo build --release`, x86-64).
pub(crate) const MAX_UNOPTIMISED: u64 = 16_500_000;

/// Port on which pierhead listens for clients.
pub(crate) const PORT: u16 = 5000;

/// An image for one platform.
pub(crate) struct Platform<'a> {
    /// Architecture, by its name in OCI images.
    pub(crate) arch: &'a str,
    pub(crate) rootfs: &'a Rootfs,
}

/// Writes an OCI layout with an index of `platforms`. `version` becomes the tag. Returns the size
/// of the compressed layers of each platform in bytes.
///
/// # Errors
/// The layout cannot be written.
pub(crate) fn write(path: &Path, version: &str, platforms: &[Platform<'_>]) -> Result<Vec<u64>> {
    let mut layout = Layout::create(path)?;
    let labels = labels(version);
    let run = json!({
        "User": format!("{USER}:{USER}"),
        "Entrypoint": [format!("/{PROGRAM}")],
        "Cmd": ["serve"],
        // Without a configuration file, pierhead stores its cache below this folder, for every
        // user.
        "Env": ["PATH=/usr/bin", "XDG_DATA_HOME=/var/lib"],
        "ExposedPorts": {format!("{PORT}/tcp"): {}},
        "WorkingDir": "/",
        "StopSignal": "SIGTERM",
        "Labels": labels,
    });
    let (mut manifests, mut sizes) = (Vec::new(), Vec::new());
    for platform in platforms {
        let layers = [&platform.rootfs.base, &platform.rootfs.program]
            .map(|tree| layout.layer(tree, Packing::Gzip));
        let layers = layers.into_iter().collect::<Result<Vec<_>>>()?;
        sizes.push(layers.iter().map(|it| it.size).sum());
        manifests.push(layout.image(Dialect::Oci, platform.arch, &layers, &run)?);
    }
    let index = layout.index(&manifests, &labels)?;
    layout.name(index, version);
    layout.finish()?;
    Ok(sizes)
}

/// Labels of the image, for each platform's configuration and for the index.
fn labels(version: &str) -> Value {
    let mut labels = json!({
        "org.opencontainers.image.title": "pierhead",
        "org.opencontainers.image.description": super::DESCRIPTION,
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.version": version,
    });
    // A build from an archive without git history has no revision.
    let revision = exec::text(Command::new("git").current_dir(paths::root()).args([
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty",
    ]));
    let source = Some(env!("CARGO_PKG_REPOSITORY").to_owned());
    for (name, value) in [("revision", revision.ok()), ("source", source)] {
        let value = value.map(|it| it.trim().to_owned());
        if let Some(value) = value.filter(|it| !it.is_empty()) {
            labels[format!("org.opencontainers.image.{name}")] = value.into();
        }
    }
    labels
}

/// Reads the layout as a client would, and checks what pierhead promises about its image: digests,
/// a user other than root, one program and the dynamic linker, no shell, and no world-writable
/// files except the usual folders.
///
/// # Errors
/// The first broken promise.
pub(crate) fn examine(path: &Path, platforms: usize) -> Result<()> {
    let index: Value = serde_json::from_slice(&fs::read(path.join("index.json"))?)?;
    let index = document(path, &index["manifests"][0])?;
    let manifests = index["manifests"].as_array().context("no index")?;
    ensure!(
        manifests.len() == platforms,
        "{} platforms",
        manifests.len()
    );
    for descriptor in manifests {
        let manifest = document(path, descriptor)?;
        let config = document(path, &manifest["config"])?;
        let arch = &descriptor["platform"]["architecture"];
        ensure!(config["architecture"] == *arch, "of {arch}: {config}");
        let user = config["config"]["User"].as_str().unwrap_or_default();
        ensure!(user == format!("{USER}:{USER}"), "its user is {user:?}");
        let mut tree = Tree::default();
        for layer in manifest["layers"].as_array().context("no layers")? {
            let bytes = blob(path, layer)?;
            tree.unpack(GzDecoder::new(bytes.as_slice()), |_| true)?;
        }
        contents(&tree, arch.as_str().unwrap_or_default()).with_context(|| arch.to_string())?;
    }
    Ok(())
}

fn contents(tree: &Tree, arch: &str) -> Result<()> {
    let entry = tree.get(PROGRAM).context("no program")?;
    ensure!(matches!(entry, Node::File(0o755, _)), "the program's mode");
    ensure!(
        tree.get("etc/ssl/certs/ca-certificates.crt").is_some(),
        "no authorities"
    );
    let licenses = tree.nodes().filter(|it| it.0.starts_with(LICENSES));
    ensure!(licenses.count() > 3, "no licences in {LICENSES}");
    for (path, node) in tree.nodes() {
        match node {
            Node::File(mode, bytes) => {
                ensure!(mode & 0o7022 == 0, "{path} has the mode {mode:o}");
                if bytes.starts_with(b"\x7fELF") {
                    let of = Elf::read(bytes)?.arch.name();
                    ensure!(of == arch, "{path} is for {of}");
                }
                let runs = mode & 0o111 != 0 && bytes.starts_with(b"\x7fELF");
                let known = path == PROGRAM || path.contains(".so");
                ensure!(
                    known || !runs && !bytes.starts_with(b"#!"),
                    "{path} is a program"
                );
            }
            Node::Folder(mode) => {
                ensure!(
                    mode & 0o022 == 0 || path == "tmp",
                    "{path} is for everybody"
                );
            }
            Node::Symlink(_) | Node::Hardlink(_) => {}
            Node::Owned { .. } | Node::Noise { .. } => bail!("{path} was not unpacked"),
        }
    }
    Ok(())
}

fn document(layout: &Path, descriptor: &Value) -> Result<Value> {
    Ok(serde_json::from_slice(&blob(layout, descriptor)?)?)
}

fn blob(layout: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let digest = descriptor["digest"].as_str().context("no digest")?;
    let name = digest.strip_prefix("sha256:").context("another hash")?;
    let bytes = fs::read(layout.join("blobs/sha256").join(name))?;
    ensure!(hex(&Sha256::digest(&bytes)) == name, "{digest} is damaged");
    ensure!(
        descriptor["size"].as_u64() == Some(bytes.len() as u64),
        "{digest} has another size"
    );
    Ok(bytes)
}
