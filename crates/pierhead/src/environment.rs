//! All that is taken from the process's environment, in one place.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pierhead_host::machine::Machine;

/// Read once at the start and handed down.
#[derive(Clone)]
pub(crate) struct Environment {
    /// `https_proxy`, else `HTTPS_PROXY`; may hold a password, so it is never shown.
    pub(crate) https_proxy: Option<String>,
    /// The words of `no_proxy`, else `NO_PROXY`.
    pub(crate) no_proxy: Vec<String>,
    /// Where the cache lives when nobody says otherwise.
    pub(crate) default_data: PathBuf,
    /// `PATH`.
    pub(crate) search_path: OsString,
    /// Where a user's own configurations are.
    pub(crate) user_config: Option<PathBuf>,
    /// Where a user's programs keep what must last.
    pub(crate) user_state: Option<PathBuf>,
    /// Where `docker login` of this user keeps logins.
    pub(crate) docker_config: Option<PathBuf>,
    /// What it may use of this machine.
    pub(crate) machine: Machine,
    /// Who started this process and wants to know how it goes.
    pub(crate) supervisor: Supervisor,
}

/// A service manager, as sd_notify(3) and sd_watchdog_enabled(3) describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Supervisor {
    /// A path, or an abstract name after `@`.
    pub(crate) socket: Option<OsString>,
    /// It believes that we hang after so long without a sign.
    pub(crate) watchdog: Option<Duration>,
}

impl Supervisor {
    /// The watchdog may be meant for another process than `own`.
    fn new(socket: Option<OsString>, usec: Option<&str>, pid: Option<&str>, own: u32) -> Self {
        let meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
        let watchdog = usec.filter(|_| meant).and_then(|usec| usec.parse().ok());
        Self {
            socket: socket.filter(|name| !name.is_empty()),
            watchdog: watchdog.filter(|&usec| usec > 0).map(Duration::from_micros),
        }
    }
}

impl Environment {
    /// Reads the environment.
    pub(crate) fn read() -> Self {
        let either = |lower: &str, upper: &str| {
            env::var(lower)
                .or_else(|_| env::var(upper))
                .ok()
                .filter(|value| !value.is_empty())
        };
        let no_proxy = either("no_proxy", "NO_PROXY").unwrap_or_default();
        Self {
            https_proxy: either("https_proxy", "HTTPS_PROXY"),
            no_proxy: no_proxy
                .split([',', ' '])
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect(),
            default_data: default_data(
                rustix::process::geteuid().is_root(),
                env::var_os("XDG_DATA_HOME").map(PathBuf::from),
                env::var_os("HOME").map(PathBuf::from),
            ),
            search_path: env::var_os("PATH").unwrap_or_default(),
            user_config: of_user("XDG_CONFIG_HOME", ".config"),
            user_state: of_user("XDG_STATE_HOME", ".local/state"),
            docker_config: of_user("DOCKER_CONFIG", ".docker")
                .map(|folder| folder.join("config.json")),
            machine: Machine::read(Path::new("/")),
            supervisor: Supervisor::new(
                env::var_os("NOTIFY_SOCKET"),
                env::var("WATCHDOG_USEC").ok().as_deref(),
                env::var("WATCHDOG_PID").ok().as_deref(),
                std::process::id(),
            ),
        }
    }
}

/// A folder of the user: what the variable says, else below the home.
fn of_user(variable: &str, usual: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map(PathBuf::from);
    named
        .filter(|path| path.is_absolute())
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(usual)))
}

/// The XDG base directory rules: a relative `XDG_DATA_HOME` does not count.
fn default_data(root: bool, xdg: Option<PathBuf>, home: Option<PathBuf>) -> PathBuf {
    if root {
        return PathBuf::from("/var/lib/pierhead");
    }
    match (xdg.filter(|path| path.is_absolute()), home) {
        (Some(data), _) => data.join("pierhead"),
        (None, Some(home)) => home.join(".local/share/pierhead"),
        (None, None) => Path::new("pierhead-data").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_of_one_process() {
        let watchdog = |usec, pid| Supervisor::new(None, usec, pid, 7).watchdog;
        assert_eq!(
            watchdog(Some("2000000"), Some("7")),
            Some(Duration::from_secs(2))
        );
        assert_eq!(
            watchdog(Some("2000000"), None),
            Some(Duration::from_secs(2))
        );
        for (usec, pid) in [("2000000", "8"), ("0", "7"), ("soon", "7"), ("1", "")] {
            assert_eq!(watchdog(Some(usec), Some(pid)), None, "{usec} of {pid}");
        }
        let empty = Supervisor::new(Some("".into()), None, None, 7);
        assert_eq!(empty, Supervisor::default());
    }

    #[test]
    fn data_folder_by_user() {
        let path = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            default_data(true, path("/x"), path("/home/a")),
            Path::new("/var/lib/pierhead")
        );
        assert_eq!(
            default_data(false, path("/x"), path("/home/a")),
            Path::new("/x/pierhead")
        );
        assert_eq!(
            default_data(false, path("x"), path("/home/a")),
            Path::new("/home/a/.local/share/pierhead")
        );
        assert_eq!(default_data(false, None, None), Path::new("pierhead-data"));
    }
}
