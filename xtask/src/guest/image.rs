//! Extracts a kernel and its modules from Debian's packages, for virtual machines to boot, and
//! caches them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::{modules::Modules, newc::Archive};
use crate::{
    apt::{self, Apt, Package},
    console::say,
    exec,
};

/// Kernel and modules of a kind of virtual machine.
pub(crate) struct Recipe {
    /// Debian's name of the architecture.
    pub(crate) arch: &'static str,
    /// Required modules. The code adds the modules on which these depend, and ignores modules that
    /// the kernel has built in.
    pub(crate) modules: &'static [&'static str],
    /// One of `modules` that Debian's kernel certainly has as a module. If it is missing, the
    /// modules could not be read.
    pub(crate) known_module: &'static str,
}

impl Recipe {
    /// Text of the recipe. A cached image with another text is built again.
    fn text(&self) -> String {
        format!("1 {}", self.modules.join(" "))
    }
}

/// A kernel, and the part of the initramfs that all boots share.
pub(crate) struct Image {
    /// Path of the kernel.
    pub(crate) kernel: PathBuf,
    /// cpio archive with busybox and the modules.
    pub(crate) base: Vec<u8>,
}

impl Image {
    /// Uses the image that an earlier call cached in `folder`, or downloads 70 MB of Debian
    /// packages.
    ///
    /// # Errors
    /// The image is not cached, and no Debian mirror is reachable.
    pub(crate) fn prepare(folder: &Path, recipe: &Recipe) -> Result<Self> {
        fs::create_dir_all(folder)?;
        // The lock prevents two calls from unpacking into the same folder. The lock is released
        // when the file is closed.
        let lock = fs::File::create(folder.join("lock"))?;
        lock.lock()?;
        let kernel = folder.join("vmlinuz");
        let base = folder.join("base.cpio");
        let made_by = folder.join("recipe");
        if fs::read_to_string(&made_by).is_ok_and(|it| it == recipe.text()) {
            return Ok(Self {
                base: fs::read(&base)?,
                kernel,
            });
        }
        say!(
            "  fetching a kernel of {} for the virtual machine from Debian (70 MB, kept)",
            recipe.arch
        );
        let unpacked = unpack(&folder.join("apt"), recipe.arch)
            .context("the first run needs a Debian mirror; later ones need no network")?;
        let boot = unpacked.path().join("boot");
        let Some(found) = find(&boot, "vmlinuz-")? else {
            bail!("Debian's kernel package brought no kernel");
        };
        let modules =
            Modules::find(&unpacked.path().join("lib/modules"))?.closure(recipe.modules)?;
        // A newer kernel may have modules with a compression that this code does not read.
        if !modules.iter().any(|(name, _)| name == recipe.known_module) {
            bail!(
                "{}: its modules have no {}.ko",
                found.display(),
                recipe.known_module
            );
        }
        let mut archive = Archive::default();
        for path in ["bin", "modules", "job"] {
            archive.folder(path);
        }
        archive.file(
            "bin/busybox",
            &fs::read(unpacked.path().join("bin/busybox"))?,
        );
        let order: String = modules
            .iter()
            .map(|(name, _)| format!("{name}\n"))
            .collect();
        archive.file("modules/order", order.as_bytes());
        for (name, module) in &modules {
            archive.file(&format!("modules/{name}.ko"), module);
        }
        fs::copy(&found, &kernel)?;
        let bytes = archive.finish();
        fs::write(&base, &bytes)?;
        fs::remove_dir_all(folder.join("apt"))?;
        // The file is written last, so that an interrupted build is repeated.
        fs::write(&made_by, recipe.text())?;
        Ok(Self {
            kernel,
            base: bytes,
        })
    }
}

/// Downloads and unpacks the packages. apt keeps its state in `folder` and installs nothing.
fn unpack(folder: &Path, arch: &str) -> Result<tempfile::TempDir> {
    let apt = Apt::prepare(folder, &[arch])?;
    let latest = format!("linux-image-{arch}");
    let wanted = |package: &Package| {
        let name = package.name.as_str();
        // The package without a version in its name contains no kernel: it depends on the package
        // of the latest kernel.
        name == "busybox-static" || (name.starts_with("linux-image-") && name != latest)
    };
    let packages: Vec<_> = apt
        .closure(apt::Suite::Updates, arch, &[&latest, "busybox-static"])?
        .into_iter()
        .filter(wanted)
        .collect();
    let unpacked = tempfile::tempdir_in(folder)?;
    for package in apt.download(&packages)? {
        exec::output(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(package)
                .arg(unpacked.path()),
        )?;
    }
    Ok(unpacked)
}

/// The file in `folder` whose name begins with `prefix`.
fn find(folder: &Path, prefix: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}
