//! Reads the environment variables of the process, and the limits of the host. No other module
//! reads environment variables.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pierhead_host::machine::Machine;

/// Prefix of the glibc tunables `arena_max` and `arena_test`.
const ARENA_TUNABLES: &str = "glibc.malloc.arena";

/// The environment of the process, read once at the start.
#[derive(Clone)]
pub(crate) struct Environment {
    /// Value of `https_proxy`, else of `HTTPS_PROXY`. The value may contain a password, so pierhead
    /// never prints it.
    pub(crate) https_proxy: Option<String>,
    /// Comma-separated items of `no_proxy`, else of `NO_PROXY`.
    pub(crate) no_proxy: Vec<String>,
    /// Default value of the configuration key `data`.
    pub(crate) default_data: PathBuf,
    /// Value of the variable `PATH`.
    pub(crate) search_path: OsString,
    /// Folder of the user's configuration files: `XDG_CONFIG_HOME` or `~/.config`.
    pub(crate) user_config: Option<PathBuf>,
    /// Folder of the user's persistent state: `XDG_STATE_HOME` or `~/.local/state`.
    pub(crate) user_state: Option<PathBuf>,
    /// Path of the user's Docker config.json, in `DOCKER_CONFIG` or `~/.docker`.
    pub(crate) docker_config: Option<PathBuf>,
    /// CPUs and memory that this process may use.
    pub(crate) machine: Machine,
    /// Whether `MALLOC_ARENA_MAX` is set, or `GLIBC_TUNABLES` has a tunable of malloc arenas.
    pub(crate) sets_malloc: bool,
    /// Socket and watchdog timeout of the service manager.
    pub(crate) service_manager: NotifySettings,
}

/// Settings that the service manager passes, as in sd_notify(3) and sd_watchdog_enabled(3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NotifySettings {
    /// Value of `NOTIFY_SOCKET`: the path of a socket, or `@` and the name of an abstract socket.
    pub(crate) socket: Option<OsString>,
    /// Watchdog timeout: the service manager restarts a process that sends no keep-alive within
    /// this time.
    pub(crate) watchdog: Option<Duration>,
}

impl NotifySettings {
    /// Parses the variables of the service manager. Ignores a watchdog that is for another process
    /// than `own_pid`.
    fn new(socket: Option<OsString>, usec: Option<&str>, pid: Option<&str>, own_pid: u32) -> Self {
        let is_for_us = pid.is_none_or(|pid| pid.parse() == Ok(own_pid));
        let watchdog = usec
            .filter(|_| is_for_us)
            .and_then(|usec| usec.parse().ok());
        Self {
            socket: socket.filter(|name| !name.is_empty()),
            watchdog: watchdog.filter(|&usec| usec > 0).map(Duration::from_micros),
        }
    }
}

impl Environment {
    /// Reads the environment of this process.
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
                .filter(|item| !item.is_empty())
                .map(str::to_owned)
                .collect(),
            default_data: default_data(
                rustix::process::geteuid().is_root(),
                env::var_os("XDG_DATA_HOME").map(PathBuf::from),
                env::var_os("HOME").map(PathBuf::from),
            ),
            search_path: env::var_os("PATH").unwrap_or_default(),
            user_config: user_folder("XDG_CONFIG_HOME", ".config"),
            user_state: user_folder("XDG_STATE_HOME", ".local/state"),
            docker_config: user_folder("DOCKER_CONFIG", ".docker")
                .map(|folder| folder.join("config.json")),
            machine: Machine::read(Path::new("/")),
            sets_malloc: sets_malloc(|name| env::var_os(name)),
            service_manager: NotifySettings::new(
                env::var_os("NOTIFY_SOCKET"),
                env::var("WATCHDOG_USEC").ok().as_deref(),
                env::var("WATCHDOG_PID").ok().as_deref(),
                std::process::id(),
            ),
        }
    }
}

/// Returns a folder of the user: the absolute path in the variable, else a folder below `HOME`.
fn user_folder(variable: &str, default: &str) -> Option<PathBuf> {
    let configured = env::var_os(variable).map(PathBuf::from);
    configured
        .filter(|path| path.is_absolute())
        .or_else(|| Some(Path::new(&env::var_os("HOME")?).join(default)))
}

/// Returns the default value of the key `data`. By the XDG base directory rules, a relative
/// `XDG_DATA_HOME` is ignored.
fn default_data(is_root: bool, xdg: Option<PathBuf>, home: Option<PathBuf>) -> PathBuf {
    if is_root {
        return PathBuf::from("/var/lib/pierhead");
    }
    match (xdg.filter(|path| path.is_absolute()), home) {
        (Some(data), _) => data.join("pierhead"),
        (None, Some(home)) => home.join(".local/share/pierhead"),
        (None, None) => Path::new("pierhead-data").to_owned(),
    }
}

/// `GLIBC_TUNABLES` also has tunables of other parts of glibc, which say nothing about arenas.
fn sets_malloc(value: impl Fn(&str) -> Option<OsString>) -> bool {
    let tunables = value("GLIBC_TUNABLES").unwrap_or_default();
    value("MALLOC_ARENA_MAX").is_some() || tunables.to_string_lossy().contains(ARENA_TUNABLES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_is_ignored() {
        let watchdog = |usec, pid| NotifySettings::new(None, usec, pid, 7).watchdog;
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
        let empty = NotifySettings::new(Some("".into()), None, None, 7);
        assert_eq!(empty, NotifySettings::default());
    }

    #[test]
    fn the_default_data_folder_depends_on_the_user() {
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

    #[test]
    fn settings_of_the_allocator_are_found() {
        for (name, value, expected) in [
            ("MALLOC_ARENA_MAX", "1", true),
            ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1", true),
            (
                "GLIBC_TUNABLES",
                "glibc.pthread.rseq=0:glibc.malloc.arena_test=1",
                true,
            ),
            ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", false),
            ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1", false),
            ("MALLOC_CHECK_", "1", false),
        ] {
            let found = sets_malloc(|it| (it == name).then(|| value.into()));
            assert_eq!(found, expected, "{name}={value}");
        }
    }
}
