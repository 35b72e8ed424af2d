//! The clients on this machine: whether they are set up to ask pierhead, and really do.

use std::env;
use std::path::{Path, PathBuf};

use super::daemon::Running;
use super::docker_socket;
use super::report::Finding;
use crate::cli::doctor::DoctorArgs;
use crate::cli::setup::Client;
use crate::config::Config;
use crate::environment::Environment;
use crate::setup::{Address, Installed, Place};

/// Those that are installed; a machine without any is told so.
pub(crate) async fn look(
    running: &Running,
    config: &Config,
    environment: &Environment,
    args: &DoctorArgs,
) -> Vec<Finding> {
    let ours = Ours::new(running, config);
    let place = Place::machine(Path::new("/"));
    let mut findings = Vec::new();
    for client in [
        Client::Docker,
        Client::Containerd,
        Client::Podman,
        Client::Crio,
    ] {
        if !is_installed(client, environment) {
            continue;
        }
        let about = format!("client {}", client.name());
        match Installed::read(&place, client, args.docker_config.as_deref()) {
            Ok(found) => {
                findings.push(one(&about, client, &found, &ours, &args.docker_socket).await)
            }
            Err(error) => findings.push(Finding::fail(
                about,
                format!("{error:#}"),
                "fix the line: the client itself cannot read it",
            )),
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "clients",
            "none on this machine: they are set up where they run",
        ));
    }
    findings
}

/// The addresses that mean this pierhead.
struct Ours {
    ports: Vec<u16>,
    shown: String,
}

impl Ours {
    fn new(running: &Running, config: &Config) -> Self {
        let configured = config.listen.iter().map(|address| address.port());
        let address = running.address();
        let ports = configured
            .chain(address.as_ref().map(Address::port))
            .collect();
        let shown = address.unwrap_or_else(Address::usual).to_string();
        Self { ports, shown }
    }

    /// A client may know us by any name of ours; the port tells.
    fn is(&self, mirror: &str) -> bool {
        let parsed = mirror.split('/').next().filter(|_| !mirror.contains("://"));
        let address: Option<Address> = parsed.unwrap_or(mirror).parse().ok();
        address.is_some_and(|address| self.ports.contains(&address.port()))
    }
}

async fn one(
    about: &str,
    client: Client,
    found: &Installed,
    ours: &Ours,
    docker: &Path,
) -> Finding {
    let mend = format!("pierhead setup {}", client.name());
    let mine: Vec<_> = found
        .mirrors
        .iter()
        .filter(|mirror| ours.is(mirror))
        .collect();
    let Some(first) = mine.first() else {
        let what = match found.mirrors.as_slice() {
            [] => "pulls from the registries themselves".to_owned(),
            [other, ..] => format!("asks {other}, and not the pierhead at {}", ours.shown),
        };
        return Finding::warn(about, what, mend);
    };
    if let Some(problem) = &found.problem {
        return Finding::fail(about, problem, mend);
    }
    if client == Client::Docker {
        return match docker_socket::mirrors(docker).await {
            Ok(mirrors) if mirrors.iter().any(|mirror| ours.is(mirror)) => Finding::ok(
                about,
                format!("asks {first} for Docker Hub, and its daemon knows"),
            ),
            Ok(_) => Finding::fail(
                about,
                format!("its file names {first}, and its running daemon does not know of it"),
                "systemctl reload docker",
            ),
            Err(error) => Finding::ok(
                about,
                format!(
                    "its file names {first} for Docker Hub (its daemon cannot be asked: {error:#})"
                ),
            ),
        };
    }
    Finding::ok(about, format!("asks {first} for {}", found.scope))
}

fn is_installed(client: Client, environment: &Environment) -> bool {
    let programs: &[&str] = match client {
        Client::Docker => &["dockerd"],
        Client::Containerd => &["containerd"],
        Client::Podman => &["podman"],
        Client::Crio => &["crio"],
    };
    let usual = ["/usr/sbin", "/usr/bin", "/usr/local/bin", "/usr/local/sbin"];
    let mut folders: Vec<PathBuf> = env::split_paths(&environment.search_path).collect();
    folders.extend(usual.map(PathBuf::from));
    programs
        .iter()
        .any(|program| folders.iter().any(|folder| folder.join(program).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Level;

    #[tokio::test]
    async fn who_asks_us_is_told_from_who_does_not() {
        let config = Config::with_data("/nowhere".into());
        let ours = Ours::new(&Running::Off, &config);
        let found = |mirrors: &[&str], problem: Option<&str>| Installed {
            mirrors: mirrors.iter().map(|it| (*it).to_owned()).collect(),
            scope: "every registry".to_owned(),
            problem: problem.map(str::to_owned),
        };
        for (mirrors, problem, level) in [
            (&[][..], None, Level::Warn),
            (&["https://mirror.lab"], None, Level::Warn),
            (&["http://10.0.0.1:5000"], None, Level::Ok),
            (&["10.0.0.1:5000/docker.io"], None, Level::Ok),
            (
                &["http://127.0.0.1:5000"],
                Some("no config_path"),
                Level::Fail,
            ),
        ] {
            let finding = one(
                "x",
                Client::Containerd,
                &found(mirrors, problem),
                &ours,
                Path::new("/nowhere"),
            )
            .await;
            assert_eq!(finding.level, level, "{finding:?}");
            assert_eq!(finding.mend.is_none(), level == Level::Ok, "{finding:?}");
        }
    }
}
