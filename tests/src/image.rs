//! Builds small runnable images for the end-to-end tests, without downloads. Each image contains a
//! program of a few machine instructions, for x86-64 and aarch64. The output of `docker run` shows
//! that the pulled image is complete.

use std::{
    fs,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use crate::{
    layout::{Image, Layout, architecture},
    paths,
    tool::Missing,
};

/// The line that the program in each image prints.
pub const GREETING: &str = "hello from behind the pier\n";
/// Version of the generated images. Increase it with each change, so that the tests do not use
/// cached images of an earlier version.
const VERSION: u32 = 1;
/// The media types of a manifest, its config and its layers.
type Kind = [&'static str; 3];

const OCI: Kind = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.oci.image.layer.v1.tar+gzip",
];
const DOCKER: Kind = [
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.container.image.v1+json",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
];

/// The images that every test may use. The names of the images do not exist on Docker Hub, so that
/// a client that bypasses pierhead fails.
#[derive(Debug)]
pub struct Images {
    /// An index of two platforms with a few hundred kilobytes each.
    pub small: Image,
    /// The next version of `small`: the same base layer, other layers above it.
    pub update: Image,
    /// A Docker v2 manifest with more than 300 MB of layers that cannot be compressed.
    pub large: Image,
}

/// Realistic images that `cargo xtask corpus` builds from packages: those in `PIERHEAD_CORPUS` (any
/// OCI layout), else in the build folder. Names without a namespace get Docker Hub's `library/`.
pub fn corpus() -> Result<Vec<Image>, Missing> {
    let built = || Some(paths::profile().ok()?.parent()?.join("corpus"));
    let folder = std::env::var_os("PIERHEAD_CORPUS")
        .map(PathBuf::from)
        .or_else(built);
    let images = folder
        .context("no build folder")
        .and_then(|folder| Layout::open(&folder)?.images());
    images.map_err(|error| {
        Missing::new(format!(
            "no corpus ({error:#}): `cargo xtask corpus` builds it"
        ))
    })
}

/// Builds the images, or finds those of an earlier run.
pub fn images() -> Result<Images> {
    let cache = paths::cache("images")?;
    let lock = File::create(cache.join("lock"))?;
    // Several test processes may call this function at once: one builds the images, the others
    // wait.
    lock.lock()?;
    let folder = cache.join(format!("v{VERSION}"));
    if !folder.join("index.json").exists() {
        let _ = fs::remove_dir_all(&folder);
        make(&folder)?;
    }
    let mut images = Layout::open(&folder)?.images()?.into_iter();
    let mut next = || images.next().context("an image is missing");
    Ok(Images {
        small: next()?,
        update: next()?,
        large: next()?,
    })
}

fn make(folder: &Path) -> Result<()> {
    let layout = Layout::create(folder)?;
    let small = index(&layout, 1)?;
    let update = index(&layout, 2)?;
    let mut layers = vec![program(&layout, DOCKER, architecture())?];
    for (seed, size) in [(31, 150 << 20), (32, 120 << 20), (33, 40 << 20), (34, 7)] {
        layers.push(data(&layout, DOCKER, seed, size)?);
    }
    let large = manifest(&layout, DOCKER, architecture(), &layers)?;
    layout.name(&[
        ("library/pierhead-small:1".to_owned(), small),
        ("library/pierhead-small:2".to_owned(), update),
        ("library/pierhead-large:1".to_owned(), large),
    ])
}

/// Writes an index with both architectures.
fn index(layout: &Layout, version: u64) -> Result<Value> {
    let mut manifests = Vec::new();
    for (nth, architecture) in (0..).zip(["amd64", "arm64"]) {
        let layers = [
            program(layout, OCI, architecture)?,
            data(layout, OCI, 10 + nth, 300_000)?,
            data(layout, OCI, 20 + 2 * version + nth, 40_000)?,
        ];
        let mut descriptor = manifest(layout, OCI, architecture, &layers)?;
        descriptor["platform"] = json!({ "os": "linux", "architecture": architecture });
        manifests.push(descriptor);
    }
    layout.add_json(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }))
}

/// A compressed layer and its diff ID, the digest of its uncompressed bytes.
struct Layer {
    descriptor: Value,
    diff_id: Value,
}

fn manifest(
    layout: &Layout,
    [manifest, config, _]: Kind,
    architecture: &str,
    layers: &[Layer],
) -> Result<Value> {
    let mut descriptor = layout.add_json(&json!({
        "architecture": architecture,
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": { "Cmd": ["/hello"], "Env": ["PATH=/"] },
        "rootfs": { "type": "layers", "diff_ids": layers.iter().map(|it| &it.diff_id).collect::<Vec<_>>() },
        "history": layers.iter().map(|_| json!({ "created": "2026-01-01T00:00:00Z" })).collect::<Vec<_>>(),
    }))?;
    descriptor["mediaType"] = config.into();
    layout.add_json(&json!({
        "schemaVersion": 2,
        "mediaType": manifest,
        "config": descriptor,
        "layers": layers.iter().map(|it| &it.descriptor).collect::<Vec<_>>(),
    }))
}

/// Writes a layer with the program, and with the folders on which a container runtime mounts file
/// systems.
fn program(layout: &Layout, kind: Kind, architecture: &str) -> Result<Layer> {
    let program = elf(architecture)?;
    layer(layout, kind, |tar| {
        for folder in ["dev", "etc", "proc", "sys", "tmp"] {
            append(tar, folder, tar::EntryType::Directory, 0o755, &[])?;
        }
        append(tar, "hello", tar::EntryType::Regular, 0o755, &program)
    })
}

/// Writes a layer with one file of `size` pseudo-random bytes.
fn data(layout: &Layout, kind: Kind, seed: u64, size: usize) -> Result<Layer> {
    layer(layout, kind, |tar| {
        let mut bytes = vec![0; size];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        append(
            tar,
            &format!("data-{seed}"),
            tar::EntryType::Regular,
            0o644,
            &bytes,
        )
    })
}

type Tar<'a> = tar::Builder<&'a mut dyn std::io::Write>;

fn layer(
    layout: &Layout,
    [_, _, media_type]: Kind,
    fill: impl FnOnce(&mut Tar<'_>) -> Result<()>,
) -> Result<Layer> {
    let write = |sink: &mut dyn std::io::Write| {
        let mut tar = tar::Builder::new(sink);
        fill(&mut tar)?;
        Ok(tar.finish()?)
    };
    // Writes the layer uncompressed for its diff ID, then compressed.
    let plain = layout.add("application/vnd.oci.image.layer.v1.tar", write)?;
    let file = layout.path(plain["digest"].as_str().context("no digest")?);
    let descriptor = layout.add(media_type, |sink| {
        let mut gzip = GzEncoder::new(sink, Compression::fast());
        std::io::copy(&mut File::open(&file)?, &mut gzip)?;
        gzip.finish()?.flush()?;
        Ok(())
    })?;
    fs::remove_file(&file)?;
    Ok(Layer {
        descriptor,
        diff_id: plain["digest"].clone(),
    })
}

fn append(
    tar: &mut Tar<'_>,
    path: &str,
    kind: tar::EntryType,
    mode: u32,
    bytes: &[u8],
) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(bytes.len() as u64);
    header.set_mtime(1_767_225_600);
    Ok(tar.append_data(&mut header, path, bytes)?)
}

/// The smallest ELF program that prints [`GREETING`] on Linux and exits with 0: one segment, no
/// libraries.
fn elf(architecture: &str) -> Result<Vec<u8>> {
    const BASE: u64 = 0x40_0000;
    /// Size of the ELF header and the one program header, in bytes.
    const HEADERS: usize = 64 + 56;
    let length = u8::try_from(GREETING.len())?;
    let (machine, code): (u16, Vec<u8>) = match architecture {
        "amd64" => (
            62,
            [
                &[0xb8, 1, 0, 0, 0][..],          // mov eax, write
                &[0xbf, 1, 0, 0, 0],              // mov edi, stdout
                &[0x48, 0x8d, 0x35, 16, 0, 0, 0], // lea rsi, [rip + text]
                &[0xba, length, 0, 0, 0],         // mov edx, length
                &[0x0f, 0x05],                    // syscall
                &[0xb8, 60, 0, 0, 0],             // mov eax, exit
                &[0x31, 0xff],                    // xor edi, edi
                &[0x0f, 0x05],                    // syscall
            ]
            .concat(),
        ),
        "arm64" => {
            let words: [u32; 8] = [
                0xd280_0020,                            // mov x0, stdout
                0x1000_00e1,                            // adr x1, text (28 bytes on)
                0xd280_0002 | (u32::from(length) << 5), // mov x2, length
                0xd280_0808,                            // mov x8, write
                0xd400_0001,                            // svc 0
                0xd280_0000,                            // mov x0, 0
                0xd280_0ba8,                            // mov x8, exit
                0xd400_0001,                            // svc 0
            ];
            (
                183,
                words.iter().flat_map(|word| word.to_le_bytes()).collect(),
            )
        }
        other => anyhow::bail!("no program for {other}"),
    };
    let size = (HEADERS + code.len() + GREETING.len()) as u64;
    let entry = BASE + HEADERS as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    for half in [2, machine] {
        elf.extend(half.to_le_bytes()); // executable, machine
    }
    elf.extend(1_u32.to_le_bytes());
    for wide in [entry, 64, 0] {
        elf.extend(wide.to_le_bytes()); // entry, program headers, no section headers
    }
    elf.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        elf.extend(word.to_le_bytes()); // load; read and execute
    }
    for wide in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(wide.to_le_bytes());
    }
    elf.extend(code);
    elf.extend(GREETING.as_bytes());
    Ok(elf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_runs_here() -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = paths::scratch("elf")?;
        let path = folder.path().join("hello");
        fs::write(&path, elf(architecture())?)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let output = crate::process::stdout(&mut std::process::Command::new(&path))?;
        assert_eq!(output, GREETING);
        Ok(())
    }
}
