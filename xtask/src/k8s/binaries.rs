//! Builds the programs of a Kubernetes control plane from their Go modules, and caches them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{exec, paths};

/// Version of Kubernetes. The minor version is that of the Kubernetes schemas in `cargo xtask
/// test`.
pub(super) const VERSION: &str = "1.34.4";
/// Version of kwok, which simulates nodes: it renews the lease and the conditions of each node, and
/// reports each pod as running.
const KWOK: &str = "0.7.0";
/// Programs that are built from the Go module of Kubernetes.
const PROGRAMS: &[&str] = &[
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
];

/// Paths of the programs.
pub(super) struct Binaries {
    kubernetes: PathBuf,
    kwok: PathBuf,
    /// etcd from Debian.
    pub(super) etcd: PathBuf,
    /// helm, as [`install::cluster`](crate::install::cluster) installs it.
    pub(super) helm: PathBuf,
    /// setpriv from util-linux, which kills a server when this process ends.
    pub(super) setpriv: PathBuf,
}

impl Binaries {
    /// Finds the installed programs, and builds the missing programs. With two cores, the build of
    /// Kubernetes takes eight minutes.
    ///
    /// # Errors
    /// A program is missing and cannot be built here.
    pub(super) fn prepare() -> Result<Self> {
        let installed = |name: &str| {
            let found = paths::find(name);
            found.with_context(|| {
                format!("no {name}, which `cargo xtask k8s` installs as root on a Debian")
            })
        };
        let etcd = installed("etcd")?;
        let helm = installed("helm")?;
        let setpriv = installed("setpriv")?;
        Ok(Self {
            kubernetes: build_once(&format!("kubernetes-{VERSION}"), kubernetes)?,
            kwok: build_once(&format!("kwok-{KWOK}"), kwok)?,
            etcd,
            helm,
            setpriv,
        })
    }

    /// Path of a program of Kubernetes.
    pub(super) fn kubernetes(&self, name: &str) -> PathBuf {
        self.kubernetes.join(name)
    }

    /// Path of kwok.
    pub(super) fn kwok(&self) -> PathBuf {
        self.kwok.join("kwok")
    }

    /// Folder of `kubectl`, for `PATH`.
    pub(super) fn folder(&self) -> &Path {
        &self.kubernetes
    }
}

/// Returns the tools folder `name`, and builds it if it is missing. The folder is renamed into
/// place when it is complete, so an interrupted build has no effect.
#[expect(
    clippy::disallowed_methods,
    reason = "a build artifact, which the next run makes again after a crash"
)]
fn build_once(name: &str, build: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = paths::tools().join(name);
    fs::create_dir_all(paths::tools())?;
    // The lock prevents two calls from building into the same folder. The lock is released when the
    // file is closed.
    let lock = fs::File::create(paths::tools().join(format!("{name}.lock")))?;
    lock.lock()?;
    if !folder.exists() {
        let new = paths::tools().join(format!("{name}.new"));
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

/// Builds the programs of Kubernetes. The Go module of Kubernetes requires the modules of its own
/// repository as version 0.0.0, from a folder that the module's archive lacks. The modules are
/// published as v0.MINOR.PATCH, so a generated module requires the published versions. Go verifies
/// the downloads against its checksum database.
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
    // Without these flags, the programs report a placeholder version, which helm takes for a very
    // old version.
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

/// A Go module that needs only the module of Kubernetes, generated from the `go.mod` of Kubernetes.
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

/// A `go` command that builds static programs and downloads no other toolchain.
fn go(folder: &Path) -> Result<Command> {
    let go = paths::find("go").context("no Go, at least 1.24, to build Kubernetes with")?;
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
