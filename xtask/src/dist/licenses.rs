//! Collects the licence texts of all crates that are linked into a program, from the crates' own
//! files.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::linked::LinkedCrates;
use crate::{exec, paths};

/// The licence files that are distributed with a program.
pub(crate) struct Licenses {
    /// The licence text of pierhead.
    pub(crate) own: Vec<u8>,
    /// Licence texts of the crates. Each text occurs once, below the names of the crates that have
    /// it.
    pub(crate) crates: Vec<u8>,
    /// Licence texts of Rust's standard library, as the Rust project collects them.
    pub(crate) std: Vec<u8>,
}

/// File and name of pierhead's own licence. The text of this licence also serves for crates that
/// offer the licence and contain no text.
const OWN_LICENSE: (&str, &str) = ("LICENSE", "Apache-2.0");
/// Beginnings of the names of licence files.
const NAMES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];

impl Licenses {
    /// Names and contents of the files in `usr/share/doc/pierhead`.
    pub(crate) fn files(&self) -> [(&'static str, &[u8]); 3] {
        [
            (OWN_LICENSE.0, &self.own),
            ("licenses.txt", &self.crates),
            ("licenses-rust.html", &self.std),
        ]
    }

    /// Collects the texts from cargo's unpacked sources.
    ///
    /// # Errors
    /// When a crate has no licence text, or a text cannot be read.
    pub(crate) fn of(linked: &LinkedCrates) -> Result<Self> {
        let own = fs::read(paths::root().join(OWN_LICENSE.0)).context(OWN_LICENSE.0)?;
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for id in linked.dependencies.keys() {
            let package = linked.package(id)?;
            // A crate without a source is part of this workspace.
            if package["source"].is_null() {
                continue;
            }
            let manifest = package["manifest_path"].as_str().context("no manifest")?;
            let folder = Path::new(manifest).parent().context("no folder")?;
            let expression = package["license"].as_str().unwrap_or_default();
            for text in brought(folder, expression, &own).with_context(|| id.clone())? {
                let of = texts.entry(text).or_default();
                if of.last() != Some(id) {
                    of.push(id.clone());
                }
            }
        }
        Ok(Self {
            own,
            crates: listed(texts)?.into_bytes(),
            std: library()?,
        })
    }
}

/// Licence texts of a crate, including those of source code that the crate contains.
fn brought(folder: &Path, expression: &str, own: &[u8]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    find(folder, &mut found)?;
    found.sort();
    let mut texts = Vec::new();
    for path in &found {
        let text = String::from_utf8_lossy(&fs::read(path)?).into_owned();
        // zstd offers a choice of two licences, BSD and GPL. The code leaves out the text of the
        // GPL.
        if !text.trim_start().starts_with("GNU GENERAL PUBLIC LICENSE") && !text.trim().is_empty() {
            texts.push(text);
        }
    }
    if texts.is_empty() {
        let mut choices = expression.split(" OR ").flat_map(|it| it.split('/'));
        ensure!(
            choices.any(|it| it.trim() == OWN_LICENSE.1),
            "{} has no licence text, and {expression:?} does not let us choose {}",
            folder.display(),
            OWN_LICENSE.1
        );
        texts.push(String::from_utf8(own.to_vec())?);
    }
    Ok(texts)
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(&path, found)?;
            continue;
        }
        let name = entry.file_name().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|it| name.starts_with(it)) && !name.ends_with(".rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Joins the texts, sorted by the first crate of each.
fn listed(texts: BTreeMap<String, Vec<String>>) -> Result<String> {
    let mut texts: Vec<_> = texts.into_iter().map(|(text, of)| (of, text)).collect();
    texts.sort();
    let mut list = String::from(
        "What is linked into pierhead, and under which terms. Rust's own library has a list of its own.\n",
    );
    for (of, text) in texts {
        let rule = "=".repeat(79);
        write!(
            list,
            "\n{rule}\n{}\n{rule}\n\n{}\n",
            of.join("\n"),
            text.trim_end()
        )?;
    }
    Ok(list)
}

fn library() -> Result<Vec<u8>> {
    let sysroot = exec::text(
        Command::new("rustc")
            .current_dir(paths::root())
            .args(["--print", "sysroot"]),
    )?;
    let path = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    fs::read(&path).with_context(|| format!("{}: rustup brings it", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_a_text_is_ours_to_choose_or_nobodys() {
        let folder = tempfile::tempdir().unwrap();
        let own = b"the text".as_slice();
        for chosen in ["Apache-2.0/MIT", "MIT OR Apache-2.0", "Apache-2.0"] {
            let texts = brought(folder.path(), chosen, own).unwrap();
            assert_eq!(texts, ["the text"], "{chosen}");
        }
        for not in [
            "MIT",
            "",
            "MIT AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(brought(folder.path(), not, own).is_err(), "{not}");
        }
        fs::create_dir(folder.path().join("vendored")).unwrap();
        for (name, text) in [
            ("LICENSE-MIT", "MIT"),
            ("vendored/NOTICE", "of somebody"),
            ("COPYING", "  GNU GENERAL PUBLIC LICENSE\nVersion 2"),
            ("license.rs", "fn license() {}"),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let texts = brought(folder.path(), "MIT", own).unwrap();
        assert_eq!(texts, ["MIT", "of somebody"]);
    }

    #[test]
    fn a_text_of_several_is_there_once() {
        let texts = BTreeMap::from([
            ("one".to_owned(), vec!["b 1".to_owned(), "c 1".to_owned()]),
            ("other".to_owned(), vec!["a 1".to_owned()]),
        ]);
        let list = listed(texts).unwrap();
        assert_eq!(list.matches("\none\n").count(), 1);
        assert!(list.contains("\nb 1\nc 1\n="), "{list}");
        assert!(
            list.find("other").unwrap() < list.find("\none\n").unwrap(),
            "{list}"
        );
    }
}
