//! Paths: the repository, its build folder, and xtask's own files.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The build folder, as cargo would choose it from the environment.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |it| root().join(it))
}

/// The image corpus, an OCI layout.
pub(crate) fn corpus() -> PathBuf {
    target().join("corpus")
}

/// Tools that `cargo xtask test` installs for itself.
pub(crate) fn tools() -> PathBuf {
    target().join("xtask-tools")
}

/// The release that `cargo xtask test` builds from the programs under test.
pub(crate) fn dist_trial() -> PathBuf {
    target().join("dist-trial")
}

/// The output of a step of `cargo xtask test`.
pub(crate) fn step_log(step: &str) -> PathBuf {
    target().join("xtask-logs").join(format!("{step}.log"))
}

/// A file that exists after a step of `cargo xtask test` has run in this build folder. Such a step
/// finds its programs compiled and installed.
pub(crate) fn step_marker(step: &str) -> PathBuf {
    target().join("xtask-logs").join(format!("{step}.ran"))
}

/// Downloads for the corpus.
pub(crate) fn downloads() -> PathBuf {
    target().join("corpus-downloads")
}

/// The folder of a virtual machine with its kernel and one folder per run. `name` is the name of
/// the command.
///
/// # Errors
/// When the folder cannot be created.
pub(crate) fn virtual_machine(name: &str) -> std::io::Result<PathBuf> {
    let folder = target().join(name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Files of a folder with this extension, sorted by name.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The folder of programs of `go install`.
pub(crate) fn go_bin() -> Option<PathBuf> {
    env::var_os("GOBIN")
        .map(PathBuf::from)
        .or_else(|| env::var_os("GOPATH").map(|it| PathBuf::from(it).join("bin")))
        .or_else(|| env::var_os("HOME").map(|it| PathBuf::from(it).join("go/bin")))
}

/// The path of a program: as installed by xtask or `go install`, with known versions, or from
/// `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Folders of programs that the PATH of a service often lacks, such as that of a manually
    // installed Go.
    let usual = ["/usr/local/go/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"];
    [tools()]
        .into_iter()
        .chain(go_bin())
        .chain(env::split_paths(&path))
        .chain(usual.map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}
