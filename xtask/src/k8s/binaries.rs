//! Builds the programs of a Kubernetes control plane from their Go modules, and caches them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{exec, place};

/// Of Kubernetes: a patch of the minor version whose schemas `cargo xtask test` holds the charts against.
pub(super) const VERSION: &str = "1.34.4";
/// Plays nodes: each has a lease and a condition, and its pods say that they run.
const KWOK: &str = "0.7.0";
/// All that is built of Kubernetes' module.
const PROGRAMS: &[&str] = &[
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
];

/// Where each program is.
pub(super) struct Binaries {
    kubernetes: PathBuf,
    kwok: PathBuf,
    /// Debian's.
    pub(super) etcd: PathBuf,
    /// As [`install::cluster`](crate::install::cluster) brings it.
    pub(super) helm: PathBuf,
    /// Of util-linux: ties a server's life to ours.
    pub(super) setpriv: PathBuf,
}

impl Binaries {
    /// Finds what is installed and builds what is not there yet: with two cores, Kubernetes takes eight minutes.
    ///
    /// # Errors
    /// When a program is missing that cannot be built here.
    pub(super) fn prepare() -> Result<Self> {
        let installed = |name: &str| {
            let found = place::find(name);
            found.with_context(|| {
                format!("no {name}, which `cargo xtask k8s` installs as root on a Debian")
            })
        };
        let etcd = installed("etcd")?;
        let helm = installed("helm")?;
        let setpriv = installed("setpriv")?;
        Ok(Self {
            kubernetes: kept(&format!("kubernetes-{VERSION}"), kubernetes)?,
            kwok: kept(&format!("kwok-{KWOK}"), kwok)?,
            etcd,
            helm,
            setpriv,
        })
    }

    /// A program of Kubernetes.
    pub(super) fn kubernetes(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// The program that plays nodes.
    pub(super) fn kwok(&self) -> PathBuf {
        self.kwok.join("kwok")
    }

    /// The folder of `kubectl`, for a `PATH`.
    pub(super) fn folder(&self) -> &Path {
        &self.kubernetes
    }
}

/// The folder `name` of the tools. It appears whole: an interrupted build leaves nothing that counts.
#[expect(
    clippy::disallowed_methods,
    reason = "a build artifact, which the next run makes again after a crash"
)]
fn kept(name: &str, build: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = place::tools().join(name);
    fs::create_dir_all(place::tools())?;
    // Two calls at once would build over each other. The lock goes with the file.
    let lock = fs::File::create(place::tools().join(format!("{name}.lock")))?;
    lock.lock()?;
    if !folder.exists() {
        let new = place::tools().join(format!("{name}.new"));
        if new.exists() {
            fs::remove_dir_all(&new)?;
        }
        fs::create_dir_all(&new)?;
        println!("  building {name}, once");
        build(&new)?;
        fs::rename(&new, &folder)?;
    }
    Ok(folder)
}

/// Kubernetes' module names the modules that its repository holds besides as version 0.0.0 in a folder that its
/// archive lacks. Published they are v0.MINOR.PATCH, which a module of our own can say; what is fetched is
/// held against Go's checksum database.
fn kubernetes(into: &Path) -> Result<()> {
    let module = tempfile::tempdir()?;
    let file = module.path().join("go.mod");
    fs::write(&file, "module built\n\ngo 1.24.0\n")?;
    let fetched = go(module.path())?
        .args(["mod", "download", "-json"])
        .arg(format!("k8s.io/kubernetes@v{VERSION}"))
        .output()?;
    let fetched: Value = serde_json::from_slice(&fetched.stdout).context("go mod download")?;
    let theirs = fetched["GoMod"]
        .as_str()
        .with_context(|| format!("go mod download: {}", fetched["Error"]))?;
    fs::write(&file, module_file(&fs::read_to_string(theirs)?)?)?;
    let (major, minor) = VERSION.split_once('.').context("a version")?;
    let minor = minor.split('.').next().unwrap_or_default();
    let said = [
        ("gitVersion", format!("v{VERSION}")),
        ("gitMajor", major.to_owned()),
        ("gitMinor", minor.to_owned()),
        ("gitTreeState", "archive".to_owned()),
    ];
    // What it says of itself is otherwise a placeholder, which helm takes for a very old version.
    let said = said.map(|(name, value)| format!("-X k8s.io/component-base/version.{name}={value}"));
    exec::output(
        go(module.path())?
            .args(["build", "-mod=mod", "-trimpath"])
            .arg(format!("-ldflags=-s -w {}", said.join(" ")))
            .arg("-o")
            .arg(into)
            .args(
                PROGRAMS
                    .iter()
                    .map(|it| format!("k8s.io/kubernetes/cmd/{it}")),
            ),
    )
    .map(drop)
}

/// A module that needs Kubernetes' alone, from the `go.mod` of that.
fn module_file(theirs: &str) -> Result<String> {
    let staged = VERSION.strip_prefix("1.").context("Kubernetes 1")?;
    let mut text = format!(
        "module built\n\ngo 1.24.0\n\ngodebug default=go1.24\n\nrequire k8s.io/kubernetes v{VERSION}\n\nreplace (\n"
    );
    let before = text.len();
    for line in theirs.lines() {
        if let Some((name, "./staging/src/")) = line
            .trim()
            .split_once(" => ")
            .map(|(name, place)| (name, place.strip_suffix(name).unwrap_or(place)))
        {
            text += &format!("\t{name} => {name} v0.{staged}\n");
        }
    }
    if text.len() == before {
        bail!("go.mod of k8s.io/kubernetes replaces nothing by ./staging/src");
    }
    Ok(text + ")\n")
}

fn kwok(into: &Path) -> Result<()> {
    exec::output(
        go(into)?
            .env("GOBIN", into)
            .args(["install", "-trimpath", "-ldflags=-s -w"])
            .arg(format!("sigs.k8s.io/kwok/cmd/kwok@v{KWOK}")),
    )
    .map(drop)
}

/// Go, for static programs and with no toolchain but its own.
fn go(folder: &Path) -> Result<Command> {
    let go = place::find("go").context("no Go, at least 1.24, to build Kubernetes with")?;
    let mut command = Command::new(go);
    command
        .current_dir(folder)
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_modules_are_named_by_their_published_version() {
        let theirs = "module k8s.io/kubernetes\nrequire (\n\tk8s.io/api v0.0.0\n)\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n)\nreplace other => ./elsewhere/other\n";
        let ours = module_file(theirs).unwrap();
        assert!(ours.contains("require k8s.io/kubernetes v1.34."), "{ours}");
        assert!(ours.contains("\tk8s.io/api => k8s.io/api v0.34."), "{ours}");
        assert!(ours.contains("\tk8s.io/kms => k8s.io/kms v0.34."), "{ours}");
        assert!(!ours.contains("other"), "{ours}");
        assert!(module_file("module k8s.io/kubernetes\n").is_err());
    }
}
