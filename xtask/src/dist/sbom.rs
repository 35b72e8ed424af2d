//! The bill of materials of a program, in CycloneDX 1.6: every crate that is linked into it, with its licence and
//! its checksum, and who needs whom.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{arch::Arch, hex};
use crate::{apt::Package, exec, install, place};

/// The program that is listed.
const ROOT: &str = "pierhead";

/// The list for a program with this content. `debian`: what the container image has besides.
///
/// # Errors
/// When cargo does not say what it is made of.
pub(crate) fn of(arch: Arch, program: &[u8], debian: &[Package]) -> Result<Value> {
    let metadata = exec::output(
        Command::new("cargo")
            .current_dir(place::root())
            .args(["metadata", "--format-version=1", "--locked"])
            .args(["--filter-platform", arch.target()]),
    )?;
    let metadata: Value = serde_json::from_slice(&metadata)?;
    let lock = fs::read_to_string(place::root().join("Cargo.lock"))?;
    let mut bill = assemble(&metadata, &checksums(&lock))?;
    let hash = hex(&Sha256::digest(program));
    bill["metadata"]["component"]["hashes"] = json!([{"alg": "SHA-256", "content": hash}]);
    bill["metadata"]["properties"] = json!([{"name": "pierhead:target", "value": arch.target()}]);
    if let Some(components) = bill["components"].as_array_mut() {
        components.extend(debian.iter().map(|it| from_debian(it, arch)));
    }
    // The same list has the same number, and another one another.
    let number = hex(&Sha256::digest(bill.to_string().as_bytes()));
    bill["serialNumber"] = format!(
        "urn:uuid:{}-{}-8{}-8{}-{}",
        &number[..8],
        &number[8..12],
        &number[12..15],
        &number[15..18],
        &number[18..30]
    )
    .into();
    Ok(bill)
}

/// Holds lists against the schema that CycloneDX publishes.
///
/// # Errors
/// What the schema does not allow.
pub(crate) fn examine(files: &[&Path]) -> Result<()> {
    let python = place::tools().join(install::CYCLONEDX.0).join("bin/python");
    exec::output(
        Command::new(python)
            .arg(place::root().join("xtask/src/dist/validate.py"))
            .args(files),
    )
    .map(drop)
}

/// From what `cargo metadata` says and checksums by name and version.
fn assemble(metadata: &Value, checksums: &BTreeMap<String, String>) -> Result<Value> {
    let list = |value: &Value, name: &str| -> Result<Vec<Value>> {
        let list = value[name].as_array();
        Ok(list.with_context(|| format!("no {name}"))?.clone())
    };
    let mut packages = BTreeMap::new();
    for package in list(metadata, "packages")? {
        packages.insert(text(&package["id"])?, package);
    }
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"], "nodes")? {
        let mut linked = BTreeSet::new();
        for dependency in list(&node, "deps")? {
            let normal = list(&dependency, "dep_kinds")?
                .iter()
                .any(|kind| kind["kind"].is_null());
            let id = text(&dependency["pkg"])?;
            // A macro of the compiler leaves code, and is not in the program itself.
            if normal && packages.get(&id).is_some_and(|it| !is_macro(it)) {
                linked.insert(id);
            }
        }
        edges.insert(text(&node["id"])?, linked);
    }
    let root = packages
        .iter()
        .find(|(_, package)| package["name"] == ROOT)
        .map(|(id, _)| id.clone())
        .context("no package of the program")?;
    let (mut linked, mut left) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(id) = left.pop() {
        if linked.insert(id.clone()) {
            left.extend(edges.get(&id).into_iter().flatten().cloned());
        }
    }
    let (mut components, mut dependencies) = (Vec::new(), Vec::new());
    let reference = |id: &String| packages.get(id).map(purl).context("an unknown package");
    for id in &linked {
        let package = packages.get(id).context("an unknown package")?;
        if *id != root {
            components.push(component("library", package, checksums)?);
        }
        let needs = edges.get(id).into_iter().flatten().map(reference);
        let mut needs = needs.collect::<Result<Vec<_>>>()?;
        needs.sort();
        dependencies.push(json!({"ref": purl(package), "dependsOn": needs}));
    }
    for of in [&mut components, &mut dependencies] {
        of.sort_by_cached_key(|it| format!("{}{}", it["bom-ref"], it["ref"]));
    }
    let root = packages.get(&root).context("no package of the program")?;
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": "2025-01-01T00:00:00Z",
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "cargo xtask dist"}]},
            "component": component("application", root, checksums)?,
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

fn component(kind: &str, package: &Value, checksums: &BTreeMap<String, String>) -> Result<Value> {
    let (name, version) = (text(&package["name"])?, text(&package["version"])?);
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": name,
        "version": version,
        "purl": purl(package),
    });
    if kind == "library" {
        component["scope"] = "required".into();
    }
    match package["license"].as_str() {
        // An older way to write it.
        Some(license) => {
            let expression = license.replace(" / ", "/").replace('/', " OR ");
            component["licenses"] = json!([{"expression": expression}]);
        }
        None => bail!("{name} names no licence"),
    }
    if let Some(checksum) = checksums.get(&format!("{name} {version}")) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    if let Some(text) = package["description"].as_str() {
        let words: Vec<_> = text.split_whitespace().collect();
        component["description"] = words.join(" ").into();
    }
    if let Some(url) = package["repository"].as_str() {
        component["externalReferences"] = json!([{"type": "vcs", "url": url}]);
    }
    Ok(component)
}

fn from_debian(package: &Package, arch: Arch) -> Value {
    let version = package.version.replace('+', "%2B").replace(':', "%3A");
    let purl = format!(
        "pkg:deb/debian/{}@{version}?arch={}",
        package.name,
        arch.name()
    );
    json!({
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "properties": [{"name": "pierhead:in", "value": "the container image"}],
    })
}

fn purl(package: &Value) -> String {
    let word = |key: &str| {
        package[key]
            .as_str()
            .unwrap_or_default()
            .replace('+', "%2B")
    };
    format!("pkg:cargo/{}@{}", word("name"), word("version"))
}

fn is_macro(package: &Value) -> bool {
    let targets = package["targets"].as_array();
    targets.into_iter().flatten().any(|target| {
        let kinds = target["kind"].as_array();
        kinds.into_iter().flatten().any(|kind| kind == "proc-macro")
    })
}

/// `name version` to the checksum that the registry gave, from `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let mut lines = package.lines();
            let line = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|it| it.trim_matches('"'))
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (value("name"), value("version"), value("checksum"))
        {
            found.insert(format!("{name} {version}"), checksum.to_owned());
        }
    }
    found
}

fn text(value: &Value) -> Result<String> {
    let text = value
        .as_str()
        .context("cargo metadata is of another kind")?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_what_is_linked_and_nothing_else() {
        let bill = of(Arch::Arm64, b"program", &[]).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: BTreeSet<&str> = components
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        for linked in ["tokio", "ring", "zstd-sys", "pierhead-oci"] {
            assert!(names.contains(linked), "no {linked} in {names:?}");
        }
        // Of tests, of the build, of the compiler, of another system.
        for other in ["proptest", "cc", "serde_derive", "windows-sys", "pierhead"] {
            assert!(!names.contains(other), "{other} is not linked");
        }
        let references: std::collections::HashSet<&Value> = components
            .iter()
            .chain([&bill["metadata"]["component"]])
            .map(|it| &it["bom-ref"])
            .collect();
        assert_eq!(references.len(), components.len() + 1, "a reference twice");
        let dependencies = bill["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), references.len());
        for dependency in dependencies {
            let needs = dependency["dependsOn"].as_array().unwrap();
            for reference in needs.iter().chain([&dependency["ref"]]) {
                assert!(references.contains(reference), "{reference} is nobody");
            }
        }
        for component in components {
            let from_registry = !component["name"].as_str().unwrap().starts_with("pierhead");
            assert_eq!(component["hashes"].is_array(), from_registry, "{component}");
        }
        let again = of(Arch::Arm64, b"program", &[]).unwrap();
        assert_eq!(again, bill);
        assert_ne!(of(Arch::Arm64, b"other", &[]).unwrap(), bill);
    }
}
