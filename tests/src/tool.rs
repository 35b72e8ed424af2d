//! Programs that a test needs, and what happens when there is none.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use pierhead_testkit::skip;

/// Why a test cannot run here.
#[derive(Debug)]
pub struct Missing {
    reason: String,
    /// Nothing can be done about it, so that not even CI must have it.
    excused: bool,
}

impl Missing {
    /// With the reason, and the fix if there is one.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            excused: false,
        }
    }

    /// Excused where there is no Go: Debian has no package of this program.
    #[must_use]
    pub fn unless_go(mut self) -> Self {
        let go = Path::new("/usr/local/go/bin/go").exists() || find(&["go"]).is_ok();
        self.excused = !go;
        self
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// The first of these programs that exists: in the folder of `go install`, where the newer ones
/// are, else on the `PATH`, else where administrators' programs are.
pub fn find(names: &[&str]) -> Result<PathBuf, Missing> {
    let places = places();
    for name in names {
        if let Some(found) = places
            .iter()
            .map(|place| place.join(name))
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

/// Folders with programs, the preferred first; also for the `PATH` of daemons that start others.
pub fn places() -> Vec<PathBuf> {
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

/// Daemons that mount and unpack need it.
pub fn root() -> Result<(), Missing> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err(Missing::new("needs root"))
    }
}

/// What the test needs, or nothing when it must be skipped, said where the test runner's capture
/// does not hide it.
///
/// # Panics
/// In CI (`CI=true`), where a test that does not run is a failure.
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
