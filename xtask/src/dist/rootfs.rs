//! What is in the container image: the program, the libraries that it needs, certificates of authorities, a user.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, bail, ensure};

use sha2::{Digest as _, Sha256};

use super::{elf::Elf, hex, licenses::Licenses, program::Program};
use crate::{
    apt::{self, Apt, Package, Suite},
    image::layer::{Node, Tree, merged},
};

/// User and group of the container, the same as the chart's.
pub(crate) const USER: u64 = 65532;
/// Where the image has the program.
pub(crate) const PROGRAM: &str = "usr/bin/pierhead";
/// Where the image has the data, owned by its user.
pub(crate) const DATA: &str = "var/lib/pierhead";
/// The name of the folder below which packages have certificates.
const AUTHORITIES: &str = "usr/share/ca-certificates/";

/// Where the image has licences.
pub(crate) const LICENSES: &str = "usr/share/doc/pierhead";

/// A package of Debian, files of which are in the image.
pub(crate) struct Part {
    pub(crate) package: Package,
    /// Of the package's file.
    pub(crate) sha256: String,
}

/// The layers, lowest first.
pub(crate) struct Rootfs {
    /// The system: the same for every version of pierhead.
    pub(crate) base: Tree,
    /// The program.
    pub(crate) program: Tree,
    /// What the first one's files are of.
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
/// When Debian cannot be asked, or has not what the program needs.
pub(crate) fn of(apt: &Apt, program: &Program) -> Result<Rootfs> {
    let arch = program.elf.arch.name();
    let mut names: Vec<&str> = program.libraries()?.into_iter().map(|it| it.0).collect();
    names.push("ca-certificates");
    let mut packages = apt.closure(Suite::Updates, arch, &names)?;
    // What has no architecture drags in what this machine would need to install it.
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

/// What glibc and container runtimes look for.
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
    // Without it a name of /etc/hosts would be asked of the DNS first.
    base.text("etc/nsswitch.conf", "hosts: files dns\n");
    base.put(
        DATA,
        Node::Owned {
            mode: 0o750,
            id: USER,
        },
    );
}

/// The dynamic linker under the name that the program says, every library that it needs, and what those need.
fn libraries(base: &mut Tree, debian: &Tree, program: &Elf) -> Result<()> {
    let linker = program
        .interpreter
        .as_deref()
        .context("the program names no dynamic linker")?;
    let mut wanted: Vec<String> = program.needed.clone();
    let mut have = BTreeSet::new();
    // The name, and the file behind it, which is a library as any other.
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

/// One file of all, as `update-ca-certificates` would write it.
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
