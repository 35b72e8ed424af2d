//! Makes a client read its changed configuration files: by a command of systemd, or by a signal.

use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::apply::Change;
use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::daemon;
use crate::error::Error;
use crate::format::daemon_json;

/// The command that makes a client read its changed files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reload {
    client: Client,
    /// The program and its arguments.
    command: Vec<String>,
    keeps_old_mirrors: bool,
    dockerd_pid: Option<u32>,
}

impl Reload {
    /// Returns the command that is needed after these changes, or `None` if the client reads the
    /// changed files at each pull.
    pub fn after(client: Client, root: &ConfigRoot, changes: &[Change]) -> Option<Self> {
        let main: Vec<_> = changes.iter().filter(|change| is_main(change)).collect();
        let has_mirrors = |change: &&Change| {
            let text = change.to.as_deref();
            text.is_some_and(|text| text.contains(daemon_json::MIRRORS))
        };
        let loses_mirrors = !main.iter().all(has_mirrors);
        Self::of(client, root, !main.is_empty(), loses_mirrors)
    }

    /// Returns the command that makes a client read its files although a setup has to change no
    /// file, since the client may still use its earlier files. `None` if the client reads its files
    /// at each pull.
    pub fn requested(client: Client, root: &ConfigRoot) -> Option<Self> {
        Self::of(client, root, true, false)
    }

    fn of(client: Client, root: &ConfigRoot, has_main: bool, loses_mirrors: bool) -> Option<Self> {
        let words: &[&str] = match client {
            // On SIGHUP, dockerd ignores that a key was removed: dockerd keeps its mirrors until
            // its restart.
            Client::Docker if has_main && loses_mirrors => &["restart", "docker"],
            // A reload sends SIGHUP: dockerd reads the mirrors again, and containers keep running.
            Client::Docker if has_main => &["reload", "docker"],
            // containerd reads config.toml only at its start. Containers keep running while
            // containerd restarts.
            Client::Containerd if has_main => &["restart", "containerd"],
            Client::Crio => &["reload", "crio"],
            _ => return None,
        };
        let user = root.is_user().then_some("--user");
        let words = ["systemctl"]
            .into_iter()
            .chain(user)
            .chain(words.iter().copied());
        Some(Self {
            client,
            command: words.map(str::to_owned).collect(),
            keeps_old_mirrors: client == Client::Docker && loses_mirrors,
            dockerd_pid: daemon::dockerd_pid(root),
        })
    }

    /// Returns the command as text, for the user.
    pub fn command_text(&self) -> String {
        self.command.join(" ")
    }

    /// Whether dockerd keeps its old mirrors until the command has run. In this case, the command
    /// is a restart, which stops containers unless live-restore is on.
    pub fn keeps_old_mirrors(&self) -> bool {
        self.keeps_old_mirrors
    }

    /// Runs the command. Without systemd, only dockerd can be reloaded, by SIGHUP. The call blocks
    /// until the command ends, and returns a message for the user.
    ///
    /// # Errors
    /// [`Error::NotReloaded`] if the client cannot be reloaded.
    pub fn run(&self) -> Result<String, Error> {
        if !Path::new("/run/systemd/system").exists() {
            return self.signal_dockerd();
        }
        let shown = self.command_text();
        let (program, words) = self.command.split_first().unwrap_or((&shown, &[]));
        let status = Command::new(program).args(words).status();
        let status = status.map_err(|source| Error::NotReloaded {
            reason: format!("`{shown}` cannot run"),
            source: Some(source),
        })?;
        if !status.success() {
            return Err(Error::NotReloaded {
                reason: format!("`{shown}` failed: see `journalctl -e`"),
                source: None,
            });
        }
        Ok(format!("done: {shown}"))
    }

    /// Tells the user to restart or reload the client, because the machine has no systemd.
    fn without_systemd(&self) -> String {
        let has_restart = self.command.iter().any(|word| word == "restart");
        let verb = if has_restart { "restart" } else { "reload" };
        format!(
            "this machine has no systemd: {verb} {} yourself",
            self.client
        )
    }

    fn signal_dockerd(&self) -> Result<String, Error> {
        let pid = self.dockerd_pid.and_then(|pid| i32::try_from(pid).ok());
        match (self.client, pid.and_then(Pid::from_raw)) {
            (Client::Docker, Some(pid)) if !self.keeps_old_mirrors => {
                kill_process(pid, Signal::HUP).map_err(|error| Error::NotReloaded {
                    reason: "SIGHUP cannot be sent to dockerd".to_owned(),
                    source: Some(error.into()),
                })?;
                Ok("dockerd reloads its configuration".to_owned())
            }
            _ => Err(Error::NotReloaded {
                reason: self.without_systemd(),
                source: None,
            }),
        }
    }
}

/// Whether the change is in a file that the client reads only at its start. The client reads
/// `hosts.toml` and certificates at each pull.
fn is_main(change: &Change) -> bool {
    let name = change.path.file_name().and_then(|name| name.to_str());
    !matches!(name, Some("hosts.toml" | "pierhead-ca.crt" | "ca.crt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, to: Option<&str>) -> Change {
        Change {
            path: path.into(),
            from: None,
            to: to.map(str::to_owned),
        }
    }

    fn shown(client: Client, root: &ConfigRoot, changes: &[Change]) -> Option<String> {
        Reload::after(client, root, changes).map(|reload| reload.command_text())
    }

    #[test]
    fn a_client_is_reloaded_only_if_it_reads_the_file_at_its_start() {
        let system = ConfigRoot::system(Path::new("/image"));
        let user = ConfigRoot::user(Path::new("/home/a/.config"), Path::new("/home/a/.state"));
        let mirrors = change(
            "/etc/docker/daemon.json",
            Some("{\"registry-mirrors\": []}"),
        );
        let empty = change("/etc/docker/daemon.json", Some("{}"));
        let removed = change("/etc/docker/daemon.json", None);
        let ca = change("/etc/docker/certs.d/a/ca.crt", Some("PEM"));
        for (client, changes, expected) in [
            (
                Client::Docker,
                vec![mirrors.clone()],
                Some("systemctl reload docker"),
            ),
            (
                Client::Docker,
                vec![mirrors.clone(), ca.clone()],
                Some("systemctl reload docker"),
            ),
            (
                Client::Docker,
                vec![empty],
                Some("systemctl restart docker"),
            ),
            (
                Client::Docker,
                vec![removed],
                Some("systemctl restart docker"),
            ),
            (Client::Docker, vec![ca], None),
            (
                Client::Containerd,
                vec![change("/etc/containerd/config.toml", Some("version = 2"))],
                Some("systemctl restart containerd"),
            ),
            (
                Client::Containerd,
                vec![change(
                    "/etc/containerd/certs.d/_default/hosts.toml",
                    Some(""),
                )],
                None,
            ),
            (
                Client::Crio,
                vec![change(
                    "/etc/containers/registries.conf.d/50-pierhead.conf",
                    Some(""),
                )],
                Some("systemctl reload crio"),
            ),
            (
                Client::Podman,
                vec![change(
                    "/etc/containers/registries.conf.d/50-pierhead.conf",
                    Some(""),
                )],
                None,
            ),
        ] {
            assert_eq!(
                shown(client, &system, &changes).as_deref(),
                expected,
                "{client}"
            );
        }
        assert_eq!(
            shown(Client::Docker, &user, &[mirrors]).as_deref(),
            Some("systemctl --user reload docker")
        );
    }

    #[test]
    fn a_requested_reload_needs_no_change() {
        let root = ConfigRoot::system(Path::new("/image"));
        for (client, expected) in [
            (Client::Docker, Some("systemctl reload docker")),
            (Client::Containerd, Some("systemctl restart containerd")),
            (Client::Crio, Some("systemctl reload crio")),
            (Client::Podman, None),
        ] {
            let found = Reload::requested(client, &root);
            let found = found.map(|reload| reload.command_text());
            assert_eq!(found.as_deref(), expected, "{client}");
        }
    }

    #[test]
    fn without_systemd_the_user_has_to_run_the_same_action() {
        let root = ConfigRoot::system(Path::new("/image"));
        let mirrors = "{\"registry-mirrors\": []}";
        for (text, expected) in [(mirrors, "reload docker"), ("{}", "restart docker")] {
            let changes = [change("/etc/docker/daemon.json", Some(text))];
            let reload = Reload::after(Client::Docker, &root, &changes).expect("a command");
            let reason = reload.without_systemd();
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn only_a_restart_removes_the_mirrors_of_dockerd() {
        let root = ConfigRoot::system(Path::new("/image"));
        let reload = |text| {
            let changes = [change("/etc/docker/daemon.json", Some(text))];
            Reload::after(Client::Docker, &root, &changes).expect("a command")
        };
        assert!(reload("{}").keeps_old_mirrors());
        assert!(!reload("{\"registry-mirrors\": []}").keeps_old_mirrors());
    }
}
