//! Lists the crates that are linked into a program, as `cargo tree` resolves them for this program
//! alone.
//!
//! `cargo metadata` is not sufficient, because it unifies the features that all workspace members
//! request.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::arch::Arch;
use crate::exec;

/// Name and version of a crate, such as `tokio 1.2.3`.
pub(crate) type Id = String;

/// The crates of one program for one platform.
pub(crate) struct LinkedCrates {
    /// The crate that builds the program.
    pub(crate) root: Id,
    /// The direct dependencies of each crate. Every crate is a key.
    pub(crate) dependencies: BTreeMap<Id, BTreeSet<Id>>,
    /// The entry of each crate in the output of `cargo metadata`.
    packages: BTreeMap<Id, Value>,
}

impl LinkedCrates {
    /// Asks cargo for the crates of the program that the workspace's crate `root` builds.
    ///
    /// # Errors
    /// When cargo fails or prints something unexpected.
    pub(crate) fn of(arch: Arch, root: &str) -> Result<Self> {
        let (root, dependencies) = read(&tree(arch, root, &["--prefix=depth"])?)?;
        let metadata = exec::output(
            exec::cargo()
                .args(["metadata", "--format-version=1", "--locked"])
                .args(["--filter-platform", arch.target()]),
        )?;
        let metadata: Value = serde_json::from_slice(&metadata)?;
        let mut packages = BTreeMap::new();
        for package in metadata["packages"].as_array().context("no packages")? {
            let text = |key: &str| package[key].as_str().unwrap_or_default();
            let id = format!("{} {}", text("name"), text("version"));
            if dependencies.contains_key(&id) {
                packages.insert(id, package.clone());
            }
        }
        Ok(Self {
            root,
            dependencies,
            packages,
        })
    }

    /// The entry of a crate in the output of `cargo metadata`.
    ///
    /// # Errors
    /// When the crate is not linked into the program.
    pub(crate) fn package(&self, id: &str) -> Result<&Value> {
        let package = self.packages.get(id);
        package.with_context(|| format!("cargo metadata does not know {id}"))
    }
}

/// The output of `cargo tree`. Procedural macros are left out: they run in the compiler and are not
/// in the program.
fn tree(arch: Arch, root: &str, options: &[&str]) -> Result<String> {
    exec::text(
        exec::cargo()
            .args(["tree", "--locked", "--quiet", "--charset=ascii"])
            .args(["--package", root, "--edges=normal,no-proc-macro"])
            .args(["--target", arch.target()])
            .args(options),
    )
}

/// Parses the lines of `cargo tree`, such as `2tokio v1.2.3`: a depth and a crate. Returns the
/// crate at depth 0 and the dependencies of all crates. A repeated crate has no dependencies below
/// it.
fn read(tree: &str) -> Result<(Id, BTreeMap<Id, BTreeSet<Id>>)> {
    let mut root = None;
    let mut dependencies: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut above: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let name = line.trim_start_matches(|it: char| it.is_ascii_digit());
        let depth: usize = line[..line.len() - name.len()].parse()?;
        let id = id(name).with_context(|| format!("cargo tree prints {line:?}"))?;
        above.truncate(depth);
        if let Some(parent) = above.last() {
            let of_parent = dependencies.entry(parent.clone()).or_default();
            of_parent.insert(id.clone());
        } else {
            root.get_or_insert_with(|| id.clone());
        }
        dependencies.entry(id.clone()).or_default();
        above.push(id);
    }
    Ok((root.context("cargo tree prints nothing")?, dependencies))
}

/// The identity of a crate in a line such as `tokio v1.2.3 (*)` or `pierhead v0.1.0 (/path)`.
fn id(line: &str) -> Option<Id> {
    let mut words = line.split(' ');
    Some(format!(
        "{} {}",
        words.next()?,
        words.next()?.strip_prefix('v')?
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The linked crates, read from another format of `cargo tree` with one line for each
    /// dependency.
    pub(in crate::dist) fn set(arch: Arch) -> BTreeSet<Id> {
        let tree = tree(arch, "pierhead", &["--prefix=none", "--no-dedupe"]).unwrap();
        tree.lines().filter_map(id).collect()
    }

    #[test]
    fn each_crate_has_its_direct_dependencies() {
        let (root, dependencies) = read(
            "0pierhead v0.1.0 (/src)\n1a v1.0.0\n2b v2.0.0+c\n3c v3.0.0\n2c v3.0.0\n1b v2.0.0+c (*)\n1c v0.3.0\n",
        )
        .unwrap();
        assert_eq!(root, "pierhead 0.1.0");
        let of = |id: &str| -> Vec<&str> { dependencies[id].iter().map(String::as_str).collect() };
        assert_eq!(of(&root), ["a 1.0.0", "b 2.0.0+c", "c 0.3.0"]);
        assert_eq!(of("a 1.0.0"), ["b 2.0.0+c", "c 3.0.0"]);
        assert_eq!(of("b 2.0.0+c"), ["c 3.0.0"]);
        assert!(of("c 3.0.0").is_empty());
        assert!(read("").is_err());
        assert!(read("0pierhead\n").is_err());
    }
}
