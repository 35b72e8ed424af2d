//! Finds the programs that a test needs, and skips the test when one is missing.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use crate::skip;

/// The reason why a test cannot run on this machine.
#[derive(Debug)]
pub struct Missing {
    reason: String,
    /// Whether the program cannot be installed on this machine. CI may skip a test whose program
    /// cannot be installed.
    excused: bool,
}

impl Missing {
    /// Creates the reason. The text contains the fix if there is one.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            excused: false,
        }
    }

    /// Allows CI to skip the test on a machine without Go, since Debian has no package of this
    /// program.
    #[must_use]
    pub fn unless_go(mut self) -> Self {
        let go = Path::new("/usr/local/go/bin/go").exists() || find(&["go"]).is_ok();
        self.excused = !go;
        self
    }
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Finds the first of these programs: in the folder of `go install`, which has newer versions, then
/// on the `PATH`, then in `/usr/sbin` and `/sbin`.
pub fn find(names: &[&str]) -> Result<PathBuf, Missing> {
    let search_path = search_path();
    for name in names {
        if let Some(found) = search_path
            .iter()
            .map(|folder| folder.join(name))
            .find(|it| is_program(it))
        {
            return Ok(found);
        }
    }
    Err(Missing::new(format!(
        "no {} on this machine: `cargo xtask test` installs it",
        names.join(" and no ")
    )))
}

/// Folders with programs, the preferred folder first. The test library also sets these folders as
/// the `PATH` of daemons that start other programs.
pub fn search_path() -> Vec<PathBuf> {
    let gopath = env::var_os("GOPATH").map(|it| PathBuf::from(it).join("bin"));
    let home = env::var_os("HOME").map(|it| PathBuf::from(it).join("go/bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    env::var_os("GOBIN")
        .map(PathBuf::from)
        .into_iter()
        .chain(gopath)
        .chain(home)
        .chain(env::split_paths(&path))
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .collect()
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata()
        .is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// Checks that the test runs as root. Daemons need root to mount and unpack.
pub fn root() -> Result<(), Missing> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(Missing::new("needs root"))
    }
}

/// Returns the found program, or `None` when the test must be skipped. Prints the reason directly,
/// because the test runner hides the captured output of passed tests.
///
/// # Panics
/// In CI (`CI=true`), where a skipped test is a failure.
#[track_caller]
pub fn or_skip<T>(found: Result<T, Missing>) -> Option<T> {
    let missing = match found {
        Ok(found) => return Some(found),
        Err(missing) => missing,
    };
    assert!(
        !skip::is_ci() || missing.excused,
        "CI must run every test, but {}: {missing}",
        skip::test()
    );
    skip::say(&missing.reason);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_installed_program_is_found() {
        let found = find(&["no-such-program", "sh"]).expect("a shell");
        assert!(found.ends_with("sh") && is_program(&found), "{found:?}");
        let missing = find(&["no-such-program", "nor-this"]).expect_err("neither exists");
        let reason = missing.to_string();
        assert!(
            reason.starts_with("no no-such-program and no nor-this "),
            "{reason}"
        );
        assert!(!missing.excused && !is_program(Path::new("/usr")));
    }
}
