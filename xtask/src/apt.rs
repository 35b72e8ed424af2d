//! Resolves and downloads Debian packages with apt, without installing them.
//!
//! apt keeps all its state in separate folders. With these folders, apt needs no root, and can
//! download packages of an architecture that this machine does not have.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::exec;

/// Packages that only maintainer scripts need. No maintainer script runs here, so apt treats these
/// packages as installed.
const TAKEN_AS_INSTALLED: &[&str] = &[
    "adduser",
    "debconf",
    "dpkg",
    "init-system-helpers",
    "lsb-base",
    "media-types",
    "mime-support",
    "passwd",
    "perl",
    "perl-base",
    "sysvinit-utils",
    "tar",
    "usr-is-merged",
    "usrmerge",
];

/// apt preferences that hide updates after the Debian point release, for the older version of each
/// image.
const POINT_RELEASE: &str = "\
Package: *
Pin: release l=Debian-Security
Pin-Priority: -1

Package: *
Pin: release n=*-updates
Pin-Priority: -1
";

/// Selects a version of each package.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Suite {
    /// The version in the last point release.
    Release,
    /// The newest version, with security and stable updates.
    Updates,
}

/// A package that apt selected.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Package {
    /// Package name without the architecture.
    pub(crate) name: String,
    /// Package version, with epoch and revision.
    pub(crate) version: String,
    /// Debian's name of the architecture; `all` for packages that run on every architecture.
    pub(crate) arch: String,
}

/// An apt with its own state folders.
pub(crate) struct Apt {
    folder: PathBuf,
    /// Debian's name of this machine's architecture.
    pub(crate) native: String,
    /// Cache of resolved packages, since apt needs seconds for each resolution.
    plans: RefCell<HashMap<String, Vec<Package>>>,
}

impl Apt {
    /// Sets up apt's folders below `folder` and fetches the package lists for `archs`.
    ///
    /// # Errors
    /// apt is missing, or no Debian mirror is reachable.
    pub(crate) fn prepare(folder: &Path, archs: &[&str]) -> Result<Self> {
        let native = exec::text(Command::new("dpkg").arg("--print-architecture"))?
            .trim()
            .to_owned();
        for part in ["lists/partial", "cache/archives/partial", "debs"] {
            fs::create_dir_all(folder.join(part))?;
        }
        let here = folder.display();
        let archs: String = archs.iter().map(|it| format!("\"{it}\"; ")).collect();
        fs::write(
            folder.join("apt.conf"),
            format!(
                r#"Dir::State "{here}";
Dir::State::lists "{here}/lists";
Dir::State::status "{here}/status";
Dir::Cache "{here}/cache";
APT::Architecture "{native}";
APT::Architectures {{ {archs}}};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Debug::NoLocking "true";
"#
            ),
        )?;
        let status: String = TAKEN_AS_INSTALLED
            .iter()
            .map(|name| {
                format!(
                    "Package: {name}\nStatus: install ok installed\nPriority: optional\n\
                     Section: admin\nMaintainer: none\nArchitecture: {native}\n\
                     Multi-Arch: foreign\nVersion: 999:0\nDescription: none\n\n"
                )
            })
            .collect();
        fs::write(folder.join("status"), status)?;
        fs::write(folder.join("release.pref"), POINT_RELEASE)?;
        fs::write(folder.join("updates.pref"), "")?;
        let apt = Self {
            folder: folder.to_owned(),
            native,
            plans: RefCell::default(),
        };
        exec::output(apt.get().arg("update"))?;
        Ok(apt)
    }

    /// The packages `names` and all their dependencies, dependencies first.
    ///
    /// # Errors
    /// A package is unknown.
    pub(crate) fn closure(&self, suite: Suite, arch: &str, names: &[&str]) -> Result<Vec<Package>> {
        let preferences = match suite {
            Suite::Release => "release.pref",
            Suite::Updates => "updates.pref",
        };
        let key = format!("{preferences} {arch} {names:?}");
        if let Some(packages) = self.plans.borrow().get(&key) {
            return Ok(packages.clone());
        }
        let plan = exec::text(
            self.get()
                .arg("-o")
                .arg(format!(
                    "Dir::Etc::Preferences={}",
                    self.folder.join(preferences).display()
                ))
                .args(["--simulate", "install"])
                .args(names.iter().map(|name| format!("{name}:{arch}"))),
        )?;
        let packages: Vec<_> = plan.lines().filter_map(planned).collect();
        if packages.is_empty() {
            bail!("apt would install nothing for {names:?} of {arch}");
        }
        self.plans.borrow_mut().insert(key, packages.clone());
        Ok(packages)
    }

    /// Downloads the missing packages, and returns the paths in the order of `packages`. apt checks
    /// each package against the signed lists.
    ///
    /// # Errors
    /// The mirror fails.
    pub(crate) fn download(&self, packages: &[Package]) -> Result<Vec<PathBuf>> {
        let folder = self.folder.join("debs");
        let path = |package: &Package| {
            let version = package.version.replace(':', "%3a");
            folder.join(format!("{}_{version}_{}.deb", package.name, package.arch))
        };
        let missing: Vec<_> = packages
            .iter()
            .filter(|package| !path(package).exists())
            .map(|package| {
                // apt has no architecture ":all": a package without an architecture comes with any.
                let arch = if package.arch == "all" {
                    &self.native
                } else {
                    &package.arch
                };
                format!("{}:{arch}={}", package.name, package.version)
            })
            .collect();
        if !missing.is_empty() {
            exec::output(
                self.get()
                    .current_dir(&folder)
                    .arg("download")
                    .args(missing),
            )?;
        }
        let paths: Vec<_> = packages.iter().map(path).collect();
        if let Some(path) = paths.iter().find(|path| !path.exists()) {
            bail!("apt left no {}", path.display());
        }
        Ok(paths)
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command
            .env("APT_CONFIG", self.folder.join("apt.conf"))
            .env("LC_ALL", "C")
            // Container images disable apt's package cache in configuration files that apt reads
            // after the configuration file of xtask.
            .args(["-o", "Dir::Cache::pkgcache=pkgcache.bin"])
            .args(["-o", "Dir::Cache::srcpkgcache=srcpkgcache.bin"])
            .arg("--quiet");
        command
    }
}

/// The files of a package, as a tar stream.
///
/// # Errors
/// When `dpkg-deb` cannot read the package.
pub(crate) fn files(package: &Path) -> Result<Vec<u8>> {
    exec::output(Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package))
        .with_context(|| format!("unpack {}", package.display()))
}

/// Parses a line of apt such as `Inst libc6:arm64 (2.36-9 Debian:12.1/stable [arm64]) []`.
fn planned(line: &str) -> Option<Package> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(' ')?;
    let inner = rest.split_once('(')?.1.split_once(')')?.0;
    let version = inner.split(' ').next()?;
    let arch = inner.rsplit_once('[')?.1.strip_suffix(']')?;
    Some(Package {
        name: name.split(':').next()?.to_owned(),
        version: version.to_owned(),
        arch: arch.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_apt_plans() {
        let line = "Inst libgcc-s1:arm64 (12.2.0-14 Debian:12.1/stable, Debian-Security:12/stable [arm64]) [libc6 ]";
        let package = planned(line).unwrap();
        assert_eq!(package.name, "libgcc-s1");
        assert_eq!(package.version, "12.2.0-14");
        assert_eq!(package.arch, "arm64");
        assert!(planned("Conf libgcc-s1 (12.2.0-14 Debian:12.1/stable [amd64])").is_none());
    }
}
