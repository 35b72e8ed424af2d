//! Assembles the root file system of the container image: the program, its libraries, CA
//! certificates, and a user.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, bail, ensure};

use sha2::{Digest as _, Sha256};

use super::{elf::Elf, hex, licenses::Licenses, program::Program};
use crate::{
    apt::{self, Apt, Package, Suite},
    image::layer::{Node, Tree, merged},
};

/// User and group ID of the container, the same as in the chart.
pub(crate) const USER: u64 = 65532;
/// Path of the program in the image.
pub(crate) const PROGRAM: &str = "usr/bin/pierhead";
/// Path of the data folder in the image; the image's user owns it.
pub(crate) const DATA: &str = "var/lib/pierhead";
/// Path of the CA certificates in Debian's package.
const AUTHORITIES: &str = "usr/share/ca-certificates/";

/// Path of the licence files in the image.
pub(crate) const LICENSES: &str = "usr/share/doc/pierhead";

/// A Debian package of which the image contains files.
pub(crate) struct Part {
    pub(crate) package: Package,
    /// Checksum of the package file.
    pub(crate) sha256: String,
}

/// The two layers, lower one first.
pub(crate) struct Rootfs {
    /// The system layer, the same for every version of pierhead.
    pub(crate) base: Tree,
    /// The layer with the program.
    pub(crate) program: Tree,
    /// The Debian packages in the system layer.
    pub(crate) parts: Vec<Part>,
}

impl Rootfs {
    /// Adds the licences of the program.
    pub(crate) fn with_licenses(mut self, licenses: &Licenses) -> Self {
        for (name, content) in licenses.files() {
            let path = format!("{LICENSES}/{name}");
            let file = Node::File(0o644, content.to_owned());
            self.program.put(&path, file);
        }
        self
    }
}

/// Puts both layers together, without the licences of the program.
///
/// # Errors
/// When Debian's packages cannot be downloaded, or lack a required library.
pub(crate) fn of(apt: &Apt, program: &Program) -> Result<Rootfs> {
    let arch = program.elf.arch.name();
    let mut names: Vec<&str> = program.libraries()?.into_iter().map(|it| it.0).collect();
    names.push("ca-certificates");
    let mut packages = apt.closure(Suite::Updates, arch, &names)?;
    // Packages of architecture `all` depend on packages of this machine's architecture; the code
    // leaves out such dependencies.
    let fits = |it: &Package| it.arch == arch || it.arch == "all";
    packages.retain(|it| names.contains(&it.name.as_str()) && fits(it));
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    let mut debian = Tree::default();
    let mut parts = Vec::new();
    for (path, package) in apt.download(&packages)?.iter().zip(packages) {
        debian.unpack(apt::files(path)?.as_slice(), |_| true)?;
        let sha256 = hex(&Sha256::digest(fs::read(path)?));
        parts.push(Part { package, sha256 });
    }
    let mut base = Tree::default();
    system(&mut base);
    libraries(&mut base, &debian, &program.elf)?;
    base.put(
        "etc/ssl/certs/ca-certificates.crt",
        Node::File(0o644, authorities(&debian)?),
    );
    for part in &parts {
        let path = format!("usr/share/doc/{}/copyright", part.package.name);
        if let Some(node) = debian.get(&path) {
            base.put(&path, node.clone());
        }
    }
    let mut top = Tree::default();
    top.put(PROGRAM, Node::File(0o755, program.bytes.clone()));
    Ok(Rootfs {
        base,
        program: top,
        parts,
    })
}

/// Adds the files that glibc and container runtimes expect.
fn system(base: &mut Tree) {
    for folder in ["dev", "etc", "proc", "run", "sys", "usr/bin"] {
        base.put(folder, Node::Folder(0o755));
    }
    base.put("tmp", Node::Folder(0o1777));
    for moved in ["bin", "lib", "lib64", "sbin"] {
        base.put(&format!("usr/{moved}"), Node::Folder(0o755));
        base.put(moved, Node::Symlink(format!("usr/{moved}")));
    }
    base.text(
        "etc/passwd",
        &format!(
            "root:x:0:0:root:/:/nonexistent\npierhead:x:{USER}:{USER}:pierhead:/var/lib/pierhead:/nonexistent\n"
        ),
    );
    base.text(
        "etc/group",
        &format!("root:x:0:\npierhead:x:{USER}:pierhead\n"),
    );
    // Without this file, glibc asks the DNS before /etc/hosts.
    base.text("etc/nsswitch.conf", "hosts: files dns\n");
    base.put(
        DATA,
        Node::Owned {
            mode: 0o750,
            id: USER,
        },
    );
}

/// Adds the dynamic linker at the path in the program's header, and all libraries that it requires,
/// recursively.
fn libraries(base: &mut Tree, debian: &Tree, program: &Elf) -> Result<()> {
    let linker = program
        .interpreter
        .as_deref()
        .context("the program names no dynamic linker")?;
    let mut wanted: Vec<String> = program.needed.clone();
    let mut have = BTreeSet::new();
    // The path in the header is a symbolic link; the file behind it is added like any library.
    let link = merged(linker);
    let named = debian.get(&link).context("no dynamic linker in Debian")?;
    base.put(&link, named.clone());
    wanted.extend(linker.rsplit_once('/').map(|it| it.1.to_owned()));
    while let Some(name) = wanted.pop() {
        if !have.insert(name.clone()) {
            continue;
        }
        let found = debian.nodes().find(|(path, node)| {
            matches!(node, Node::File(..)) && path.rsplit_once('/').is_some_and(|it| it.1 == name)
        });
        let Some((path, node)) = found else {
            bail!("no {name} in Debian's packages");
        };
        if let Node::File(_, bytes) = node {
            let library = Elf::read(bytes)?;
            ensure!(
                library.arch == program.arch,
                "{path} is for another machine"
            );
            wanted.extend(library.needed);
        }
        base.put(path, node.clone());
    }
    Ok(())
}

/// All CA certificates in one file, as `update-ca-certificates` writes it.
fn authorities(debian: &Tree) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    for (path, node) in debian.nodes() {
        if let (true, Node::File(_, bytes)) = (
            path.starts_with(AUTHORITIES) && path.ends_with(".crt"),
            node,
        ) {
            all.extend_from_slice(bytes);
            if !bytes.ends_with(b"\n") {
                all.push(b'\n');
            }
        }
    }
    if all.is_empty() {
        bail!("no certificates in ca-certificates");
    }
    Ok(all)
}
