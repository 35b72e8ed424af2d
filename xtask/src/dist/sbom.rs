//! Writes the bill of materials of a program in CycloneDX 1.6: each linked crate and Rust's
//! standard library, with licence, checksum and dependents, and the Debian packages in the image.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{arch::Arch, hex, linked::LinkedCrates, rootfs::Part};
use crate::{exec, install, paths};

/// The bill for a program with these bytes. `debian`: the Debian packages in the container image.
///
/// # Errors
/// When cargo fails, or a component has no known licence.
pub(crate) fn of(
    linked: &LinkedCrates,
    arch: Arch,
    program: &[u8],
    debian: &[Part],
) -> Result<Value> {
    let lock = fs::read_to_string(paths::root().join("Cargo.lock"))?;
    let mut bill = assemble(linked, &checksums(&lock), debian)?;
    let hash = hex(&Sha256::digest(program));
    bill["metadata"]["component"]["hashes"] = json!([{"alg": "SHA-256", "content": hash}]);
    bill["metadata"]["properties"] = json!([{"name": "pierhead:target", "value": arch.target()}]);
    // The serial number is a hash of the bill, so that it changes only with the bill.
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

/// Validates bills against the schema that CycloneDX publishes.
///
/// # Errors
/// The violations of the schema.
pub(crate) fn examine(files: &[&Path]) -> Result<()> {
    let python = paths::tools().join(install::CYCLONEDX.0).join("bin/python");
    exec::output(
        Command::new(python)
            .arg(paths::root().join("xtask/src/dist/validate.py"))
            .args(files),
    )
    .map(drop)
}

/// Assembles the bill. Takes the checksums of crates by name and version.
fn assemble(
    linked: &LinkedCrates,
    checksums: &BTreeMap<String, String>,
    debian: &[Part],
) -> Result<Value> {
    let others = debian.iter().map(from_debian).collect::<Result<Vec<_>>>()?;
    let others: Vec<_> = [library()?].into_iter().chain(others).collect();
    let (mut components, mut dependencies) = (others.clone(), Vec::new());
    for (id, needs) in &linked.dependencies {
        let package = linked.package(id)?;
        let needs = needs.iter().map(|id| linked.package(id).map(purl));
        let mut needs = needs.collect::<Result<Vec<_>>>()?;
        if *id == linked.root {
            let others = others.iter().filter_map(|it| it["bom-ref"].as_str());
            needs.extend(others.map(str::to_owned));
        } else {
            components.push(component("library", package, checksums)?);
        }
        needs.sort();
        dependencies.push(json!({"ref": purl(package), "dependsOn": needs}));
    }
    for other in &others {
        dependencies.push(json!({"ref": other["bom-ref"], "dependsOn": []}));
    }
    for of in [&mut components, &mut dependencies] {
        of.sort_by_cached_key(|it| format!("{}{}", it["bom-ref"], it["ref"]));
    }
    let root = linked.package(&linked.root)?;
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
        // Some crates use `/` for a choice of licences, which is an older syntax.
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

/// Rust's standard library of the installed compiler. Every program contains it, but cargo does not
/// list it as a crate.
fn library() -> Result<Value> {
    let said = exec::text(
        Command::new("rustc")
            .current_dir(paths::root())
            .arg("--version"),
    )?;
    let version = said.split(' ').nth(1).context("rustc --version")?.trim();
    let purl = format!("pkg:generic/rust-std@{version}");
    Ok(json!({
        "type": "library",
        "bom-ref": purl,
        "name": "rust-std",
        "version": version,
        "purl": purl,
        "scope": "required",
        "description": "The standard library of Rust, as it comes with the compiler.",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "externalReferences": [{"type": "vcs", "url": "https://github.com/rust-lang/rust"}],
    }))
}

fn from_debian(part: &Part) -> Result<Value> {
    let package = &part.package;
    // Licences as in the copyright files of the Debian packages, for the files that the image
    // contains. The image also contains the copyright files.
    let license = match package.name.as_str() {
        "libc6" => "LGPL-2.1-or-later",
        "libgcc-s1" => "GPL-3.0-or-later WITH GCC-exception-3.1",
        "ca-certificates" => "MPL-2.0 AND GPL-2.0-or-later",
        other => bail!("nobody has looked at the licence of Debian's {other}"),
    };
    let version = package.version.replace('+', "%2B").replace(':', "%3A");
    let purl = format!(
        "pkg:deb/debian/{}@{version}?arch={}",
        package.name, package.arch
    );
    Ok(json!({
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "licenses": [{"expression": license}],
        "hashes": [{"alg": "SHA-256", "content": part.sha256}],
        "properties": [{"name": "pierhead:in", "value": "the container image"}],
    }))
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

/// Map from `name version` to the checksum of the crate, from `Cargo.lock`.
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
    use std::collections::BTreeSet;

    use super::*;
    use crate::{apt::Package, dist::linked};

    fn of(linked: &LinkedCrates, program: &[u8]) -> Value {
        let certificates = Part {
            package: Package {
                name: "ca-certificates".into(),
                version: "1".into(),
                arch: "all".into(),
            },
            sha256: "0".repeat(64),
        };
        super::of(linked, Arch::Arm64, program, &[certificates]).unwrap()
    }

    #[test]
    fn lists_what_is_linked_and_nothing_else() {
        let linked = LinkedCrates::of(Arch::Arm64, "pierhead").unwrap();
        let bill = of(&linked, b"program");
        let components = bill["components"].as_array().unwrap();
        let id = |it: &Value| {
            let word = |key: &str| it[key].as_str().unwrap();
            format!("{} {}", word("name"), word("version"))
        };
        let mut listed: BTreeSet<String> = components.iter().map(id).collect();
        listed.retain(|it| !it.starts_with("rust-std ") && it != "ca-certificates 1");
        assert_eq!(listed.len() + 2, components.len());
        listed.insert(id(&bill["metadata"]["component"]));
        assert_eq!(listed, linked::tests::set(Arch::Arm64));
        let has = |name: &str| listed.iter().any(|it| it.starts_with(&format!("{name} ")));
        for linked in ["tokio", "ring", "zstd-sys", "pierhead-oci"] {
            assert!(has(linked), "no {linked} in {listed:?}");
        }
        // Crates that the bill must not contain: for tests, for the build, for other systems, or
        // for other programs of the workspace.
        for other in [
            "proptest",
            "cc",
            "serde_derive",
            "windows-sys",
            "embedded-io",
        ] {
            assert!(!has(other), "{other} is not linked");
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
            let name = component["name"].as_str().unwrap();
            let fetched = !name.starts_with("pierhead") && name != "rust-std";
            assert_eq!(component["hashes"].is_array(), fetched, "{component}");
            assert!(component["licenses"].is_array(), "{component}");
        }
        assert_eq!(of(&linked, b"program"), bill);
        assert_ne!(of(&linked, b"other"), bill);
    }
}
