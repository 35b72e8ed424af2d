//! Writes Debian packages (`ar` archives with a control and a data tarball), and checks them with
//! dpkg.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, GzBuilder};

use super::{
    arch::Arch,
    elf::{Elf, Glibc},
    licenses::Licenses,
    program::{Program, SIMULATOR},
};
use crate::{
    exec,
    image::layer::{EPOCH, Node, Tree},
    paths,
};

/// Files that are the same on every platform.
pub(crate) struct Common {
    pub(crate) version: String,
    /// The manual page.
    pub(crate) manual: Vec<u8>,
    /// The completion script for bash.
    pub(crate) completions: Vec<u8>,
}

/// The second program of a package.
pub(crate) struct Simulator<'a> {
    pub(crate) program: &'a Program,
    pub(crate) licenses: Licenses,
    /// Bill of materials (CycloneDX).
    pub(crate) bill: Vec<u8>,
}

/// Writes a package for one architecture. `materials` is the daemon's bill of materials.
///
/// # Errors
/// When a program requires a library that no Debian package has.
pub(crate) fn package(
    common: &Common,
    program: &Program,
    materials: &[u8],
    licenses: &Licenses,
    simulator: Option<&Simulator<'_>>,
) -> Result<Vec<u8>> {
    let files = files(common, program, materials, licenses, simulator)?;
    let mut control = Tree::default();
    let programs = [program].into_iter().chain(simulator.map(|it| it.program));
    control.text("control", &description(common, programs, &files)?);
    control.text("conffiles", "/etc/pierhead/pierhead.toml\n");
    for (name, script) in [
        ("postinst", include_str!("debian/postinst")),
        ("prerm", include_str!("debian/prerm")),
        ("postrm", include_str!("debian/postrm")),
    ] {
        control.put(name, Node::File(0o755, script.into()));
    }
    let mut package = b"!<arch>\n".to_vec();
    member(&mut package, "debian-binary", b"2.0\n")?;
    // gzip, because dpkg of Ubuntu 20.04 does not read zstd.
    for (name, tree) in [("control.tar.gz", &control), ("data.tar.gz", &files)] {
        let mut archive = Vec::new();
        tree.write(&mut archive)?;
        member(&mut package, name, &gzip(&archive)?)?;
    }
    Ok(package)
}

fn files(
    common: &Common,
    program: &Program,
    materials: &[u8],
    licenses: &Licenses,
    simulator: Option<&Simulator<'_>>,
) -> Result<Tree> {
    let unit = paths::root().join("bluefield/systemd/pierhead.service");
    let unit = fs::read_to_string(&unit).with_context(|| unit.display().to_string())?;
    let mut files = Tree::default();
    files.put("usr/bin/pierhead", Node::File(0o755, program.bytes.clone()));
    files.text("usr/lib/systemd/system/pierhead.service", &unit);
    files.text(
        "usr/lib/sysusers.d/pierhead.conf",
        include_str!("debian/sysusers.conf"),
    );
    // Only root and the user's group may enter this folder (postinst sets the group), so its files
    // need no stricter modes.
    files.put("etc/pierhead", Node::Folder(0o750));
    files.text(
        "etc/pierhead/pierhead.toml",
        include_str!("debian/pierhead.toml"),
    );
    let changes = format!(
        "pierhead ({}) stable; urgency=medium\n\n  * See the history of the repository.\n\n \
         -- {MAINTAINER}  Wed, 01 Jan 2025 00:00:00 +0000\n",
        common.version
    );
    for (path, content) in [
        ("man/man1/pierhead.1.gz", gzip(&common.manual)?),
        (
            "bash-completion/completions/pierhead",
            common.completions.clone(),
        ),
        ("doc/pierhead/changelog.gz", gzip(changes.as_bytes())?),
        (
            "doc/pierhead/copyright",
            include_str!("debian/copyright").into(),
        ),
        ("doc/pierhead/pierhead.cdx.json.gz", gzip(materials)?),
    ] {
        files.put(&format!("usr/share/{path}"), Node::File(0o644, content));
    }
    for (name, content) in licenses.files() {
        let path = format!("usr/share/doc/pierhead/{name}.gz");
        files.put(&path, Node::File(0o644, gzip(content)?));
    }
    if let Some(simulator) = simulator {
        let program = Node::File(0o755, simulator.program.bytes.clone());
        files.put(&format!("usr/bin/{SIMULATOR}"), program);
        for (name, content) in [
            ("cdx.json", &simulator.bill),
            ("licenses.txt", &simulator.licenses.crates),
        ] {
            let path = format!("usr/share/doc/pierhead/{SIMULATOR}.{name}.gz");
            files.put(&path, Node::File(0o644, gzip(content)?));
        }
    }
    Ok(files)
}

const MAINTAINER: &str = "The pierhead maintainers <maintainers@pierhead.example>";

fn description<'a>(
    common: &Common,
    programs: impl Iterator<Item = &'a Program>,
    files: &Tree,
) -> Result<String> {
    let mut arch = None;
    // The highest version of the library that one of the programs requires.
    let mut libraries: Vec<(&str, Option<Glibc>)> = Vec::new();
    for program in programs {
        arch = Some(program.elf.arch.name());
        for (name, version) in program.libraries()? {
            match libraries.iter_mut().find(|it| it.0 == name) {
                Some(known) => known.1 = known.1.max(version),
                None => libraries.push((name, version)),
            }
        }
    }
    let depends = libraries.into_iter().map(|(name, version)| {
        version.map_or_else(
            || name.to_owned(),
            |(major, minor)| format!("{name} (>= {major}.{minor})"),
        )
    });
    let depends: Vec<String> = depends.chain(["ca-certificates".to_owned()]).collect();
    let bytes: usize = files
        .nodes()
        .map(|(_, node)| match node {
            Node::File(_, bytes) => bytes.len(),
            _ => 0,
        })
        .sum();
    Ok(format!(
        "Package: pierhead\nVersion: {}\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {}\nDepends: {}\nRecommends: systemd\nSection: net\nPriority: optional\n\
         Description: {}\n \
         A layer crosses the uplink once and is then served to Docker, containerd, CRI-O\n \
         and podman, unchanged, also while the upstream is down.\n",
        common.version,
        arch.context("no program")?,
        bytes.div_ceil(1024),
        depends.join(", "),
        super::DESCRIPTION,
    ))
}

/// Appends a member to an `ar` archive, with its header of 60 bytes.
fn member(archive: &mut Vec<u8>, name: &str, content: &[u8]) -> Result<()> {
    writeln!(
        archive,
        "{name:<16}{EPOCH:<12}{:<6}{:<6}{:<8}{:<10}`",
        0,
        0,
        "100644",
        content.len()
    )?;
    archive.extend_from_slice(content);
    if content.len() % 2 == 1 {
        archive.push(b'\n');
    }
    Ok(())
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

/// Checks a package: dpkg reads, installs, configures, removes and purges it in an empty root.
///
/// # Errors
/// When dpkg fails, a file is missing, or a file outlives the package.
pub(crate) fn examine(package: &Path, arch: Arch, has_simulator: bool) -> Result<()> {
    let dpkg_deb = |option: &str| exec::text(Command::new("dpkg-deb").arg(option).arg(package));
    let about = dpkg_deb("--info")?;
    for wanted in ["Package: pierhead", "libc6 (>= 2.", "conffiles", "postinst"] {
        ensure!(about.contains(wanted), "no {wanted:?} in:\n{about}");
    }
    let listed = dpkg_deb("--contents")?;
    for line in listed.lines() {
        ensure!(line.contains(" 0/0 "), "not owned by root: {line}");
    }
    let scratch = tempfile::tempdir()?;
    let root = scratch.path();
    for folder in [
        "etc",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "usr/bin",
    ] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(root.join("var/lib/dpkg/status"), "")?;
    fs::write(root.join("var/lib/dpkg/arch"), format!("{}\n", arch.name()))?;
    for file in ["passwd", "group", "shadow", "gshadow"] {
        fs::write(root.join("etc").join(file), "")?;
    }
    let dpkg = |arguments: &[&str], package: &Path| {
        exec::output(
            Command::new("dpkg")
                .arg(format!("--root={}", root.display()))
                // The root contains only this package: no shell for its scripts and no
                // dependencies.
                .args([
                    "--force-script-chrootless",
                    "--force-depends",
                    "--force-architecture",
                ])
                .args(arguments)
                .arg(package),
        )
    };
    dpkg(&["--install"], package)?;
    let simulator = format!("usr/bin/{SIMULATOR}");
    for (program, is_expected) in [("usr/bin/pierhead", true), (&*simulator, has_simulator)] {
        let path = root.join(program);
        ensure!(
            path.exists() == is_expected,
            "{program} is expected: {is_expected}"
        );
        if is_expected {
            let installed = Elf::read(&fs::read(path)?)?;
            ensure!(installed.arch == arch, "{program} is for another platform");
        }
    }
    let users = fs::read_to_string(root.join("etc/passwd"))?;
    ensure!(
        users.lines().any(|it| it.starts_with("pierhead:x:")),
        "the package created no user: {users:?}"
    );
    let config = root.join("etc/pierhead/pierhead.toml");
    ensure!(config.exists(), "the package has no configuration file");
    fs::create_dir_all(root.join("var/lib/pierhead/blobs"))?;
    let name = PathBuf::from("pierhead");
    dpkg(&["--remove"], &name)?;
    ensure!(config.exists(), "apt remove deletes the configuration");
    ensure!(
        root.join("var/lib/pierhead").exists(),
        "apt remove deletes the data"
    );
    dpkg(&["--purge"], &name)?;
    for gone in [
        "etc/pierhead",
        "var/lib/pierhead",
        "usr/bin/pierhead",
        &simulator,
    ] {
        ensure!(!root.join(gone).exists(), "{gone} outlives its package");
    }
    Ok(())
}
