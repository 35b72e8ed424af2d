//! What is linked into the program: every crate, as cargo resolves it for this program alone with its own features.
//! What `cargo metadata` says is unified with the features that other members of the workspace ask for.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::arch::Arch;
use crate::{exec, place};

/// The program.
pub(crate) const ROOT: &str = "pierhead";

/// A crate: name and version, as `tokio 1.2.3`.
pub(crate) type Id = String;

/// See the head of this module.
pub(crate) struct Linked {
    /// The program's own crate.
    pub(crate) root: Id,
    /// What each crate needs directly; all crates are among the keys.
    pub(crate) needs: BTreeMap<Id, BTreeSet<Id>>,
    /// What the manifest of each says.
    packages: BTreeMap<Id, Value>,
}

impl Linked {
    /// For this platform.
    ///
    /// # Errors
    /// When cargo does not say it.
    pub(crate) fn of(arch: Arch) -> Result<Self> {
        let (root, needs) = read(&tree(arch, &["--prefix=depth"])?)?;
        let metadata = exec::output(
            Command::new("cargo")
                .current_dir(place::root())
                .args(["metadata", "--format-version=1", "--locked"])
                .args(["--filter-platform", arch.target()]),
        )?;
        let metadata: Value = serde_json::from_slice(&metadata)?;
        let mut packages = BTreeMap::new();
        for package in metadata["packages"].as_array().context("no packages")? {
            let word = |key: &str| package[key].as_str().unwrap_or_default();
            let id = format!("{} {}", word("name"), word("version"));
            if needs.contains_key(&id) {
                packages.insert(id, package.clone());
            }
        }
        Ok(Self {
            root,
            needs,
            packages,
        })
    }

    /// What the manifest of a crate says.
    ///
    /// # Errors
    /// When it is none of these.
    pub(crate) fn package(&self, id: &str) -> Result<&Value> {
        let package = self.packages.get(id);
        package.with_context(|| format!("cargo metadata does not know {id}"))
    }
}

/// What `cargo tree` prints. Macros of the compiler leave code, and are not in the program themselves.
fn tree(arch: Arch, how: &[&str]) -> Result<String> {
    exec::text(
        Command::new("cargo")
            .current_dir(place::root())
            .args(["tree", "--locked", "--quiet", "--charset=ascii"])
            .args(["--package", ROOT, "--edges=normal,no-proc-macro"])
            .args(["--target", arch.target()])
            .args(how),
    )
}

/// Reads lines such as `2tokio v1.2.3` behind their depth: what was there before comes without what it needs.
fn read(tree: &str) -> Result<(Id, BTreeMap<Id, BTreeSet<Id>>)> {
    let mut needs: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut above: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let name = line.trim_start_matches(|it: char| it.is_ascii_digit());
        let depth: usize = line[..line.len() - name.len()].parse()?;
        let id = id(name).with_context(|| format!("cargo tree says {line:?}"))?;
        above.truncate(depth);
        if let Some(parent) = above.last() {
            needs.entry(parent.clone()).or_default().insert(id.clone());
        }
        needs.entry(id.clone()).or_default();
        above.push(id);
    }
    let root = needs.keys().find(|id| id.starts_with("pierhead "));
    Ok((root.context("cargo tree is empty")?.clone(), needs))
}

/// Of `tokio v1.2.3 (*)`, `pierhead v0.1.0 (/path)`.
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

    /// The same set in another way: one line for each crate, wherever it is needed.
    pub(in crate::dist) fn set(arch: Arch) -> BTreeSet<Id> {
        let tree = tree(arch, &["--prefix=none", "--no-dedupe"]).unwrap();
        tree.lines().filter_map(id).collect()
    }

    #[test]
    fn each_crate_has_what_it_needs_itself() {
        let (root, needs) = read(
            "0pierhead v0.1.0 (/src)\n1a v1.0.0\n2b v2.0.0+c\n3c v3.0.0\n2c v3.0.0\n1b v2.0.0+c (*)\n1c v0.3.0\n",
        )
        .unwrap();
        assert_eq!(root, "pierhead 0.1.0");
        let of = |id: &str| -> Vec<&str> { needs[id].iter().map(String::as_str).collect() };
        assert_eq!(of(&root), ["a 1.0.0", "b 2.0.0+c", "c 0.3.0"]);
        assert_eq!(of("a 1.0.0"), ["b 2.0.0+c", "c 3.0.0"]);
        assert_eq!(of("b 2.0.0+c"), ["c 3.0.0"]);
        assert!(of("c 3.0.0").is_empty());
        assert!(read("").is_err());
        assert!(read("0pierhead\n").is_err());
    }
}
