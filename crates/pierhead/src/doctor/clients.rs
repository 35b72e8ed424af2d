//! Checks the container clients on this host, such as docker: whether the configuration of each
//! client names pierhead as a mirror, and whether the client uses this configuration.

use std::env;
use std::path::{Path, PathBuf};

use pierhead_client_setup::{Address, Client, ConfigRoot, ConfiguredMirrors};

use super::daemon::RunningDaemon;
use super::docker_socket;
use super::report::Finding;
use crate::cli::doctor::DoctorArgs;
use crate::config::Config;
use crate::config::environment::Environment;

/// Checks all container clients that are installed on this host.
pub(crate) async fn check(
    running: &RunningDaemon,
    config: &Config,
    environment: &Environment,
    args: &DoctorArgs,
) -> Vec<Finding> {
    let pierhead = PierheadAddress::new(running, config);
    let is_root = rustix::process::geteuid().is_root();
    let mut findings = Vec::new();
    for client in Client::ALL {
        if !is_installed(client, environment) {
            continue;
        }
        let about = format!("client {}", client.name());
        let root = config_root_of(client, environment, is_root);
        match ConfiguredMirrors::read(&root, client, args.dockerd_config.as_deref()) {
            Ok(found) => {
                let setup = setup_command(client, &root);
                let finding = check_client(
                    &about,
                    client,
                    &setup,
                    &found,
                    &pierhead,
                    &args.docker_socket,
                );
                findings.push(finding.await);
            }
            Err(error) => findings.push(Finding::fail(
                about,
                format!("{:#}", anyhow::Error::from(error)),
                "fix the line: the client cannot parse this file either",
            )),
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            "clients",
            "no client is installed on this host",
        ));
    }
    findings
}

/// Returns the folders with the configuration of a client. Rootless podman also reads the folder of
/// its user.
fn config_root_of(client: Client, environment: &Environment, is_root: bool) -> ConfigRoot {
    match (&environment.user_config, &environment.user_state) {
        (Some(config), Some(state)) if client == Client::Podman && !is_root => {
            ConfigRoot::user(config, state)
        }
        _ => ConfigRoot::system(Path::new("/")),
    }
}

/// Returns the `pierhead setup` command for this client.
fn setup_command(client: Client, root: &ConfigRoot) -> String {
    let user = if root.is_user() { " --user" } else { "" };
    format!("pierhead setup {}{user}", client.name())
}

/// The address of this pierhead, to recognize it in the mirrors of a client.
struct PierheadAddress {
    ports: Vec<u16>,
    /// Whether the client listeners of this pierhead use HTTPS.
    tls: bool,
    shown: String,
}

impl PierheadAddress {
    fn new(running: &RunningDaemon, config: &Config) -> Self {
        let configured = config.listen.iter().map(|address| address.port());
        let address = running.address();
        let ports = configured
            .chain(address.as_ref().map(Address::port))
            .collect();
        let tls = match &address {
            Some(address) => address.is_tls(),
            None => config.tls.cert.is_some(),
        };
        let shown = address
            .unwrap_or_else(Address::default_listener)
            .to_string();
        Self { ports, tls, shown }
    }

    /// Whether a mirror is this pierhead. Compares only the port, since this host may have any
    /// number of names. A mirror without scheme has the scheme of the listener: without a port,
    /// podman connects to the port of the scheme, and not to the default port of pierhead.
    fn is_mirror(&self, mirror: &str) -> bool {
        let scheme = if self.tls { "https" } else { "http" };
        let url = match mirror.split('/').next() {
            Some(host) if !mirror.contains("://") => format!("{scheme}://{host}"),
            _ => mirror.to_owned(),
        };
        let address: Option<Address> = url.parse().ok();
        address.is_some_and(|address| self.ports.contains(&address.port()))
    }

    /// Returns the correct URL if the mirror's scheme differs from the scheme of the listener.
    fn corrected_url(&self, mirror: &str) -> Option<String> {
        let (scheme, rest) = mirror.split_once("://")?;
        let correct = if self.tls { "https" } else { "http" };
        (!scheme.eq_ignore_ascii_case(correct)).then(|| format!("{correct}://{rest}"))
    }
}

/// Compares two URLs, and ignores a final slash, which dockerd adds.
fn is_same_url(one: &str, other: &str) -> bool {
    let bare = |url: &str| url.trim_end_matches('/').to_ascii_lowercase();
    bare(one) == bare(other)
}

async fn check_client(
    about: &str,
    client: Client,
    setup: &str,
    found: &ConfiguredMirrors,
    pierhead: &PierheadAddress,
    docker: &Path,
) -> Finding {
    let own_mirrors = || {
        found
            .mirrors
            .iter()
            .filter(|mirror| pierhead.is_mirror(mirror))
    };
    let correct = own_mirrors().find(|mirror| pierhead.corrected_url(mirror).is_none());
    let of_daemon = match client {
        Client::Docker => Some(docker_socket::mirrors(docker).await),
        _ => None,
    };
    let Some(first) = correct.or_else(|| own_mirrors().next()) else {
        let known = of_daemon.and_then(Result::ok).unwrap_or_default();
        if let Some(mirror) = known.iter().find(|mirror| pierhead.is_mirror(mirror)) {
            return Finding::warn(
                about,
                format!(
                    "its configuration has no mirror at pierhead, but the running dockerd still uses {mirror}"
                ),
                format!(
                    "`systemctl restart docker` (it stops containers unless live-restore is on), or `{setup}`"
                ),
            );
        }
        let what = match found.mirrors.as_slice() {
            [] => "pulls directly from registries".to_owned(),
            [other, ..] => format!(
                "uses the mirror {other}, and not pierhead at {}",
                pierhead.shown
            ),
        };
        return Finding::warn(about, what, setup);
    };
    if let Some(problem) = &found.problem {
        return Finding::fail(about, problem, setup);
    }
    if let Some(url) = pierhead.corrected_url(first) {
        let speaks = if pierhead.tls { "HTTPS" } else { "plain HTTP" };
        return Finding::fail(
            about,
            format!(
                "its configuration has the mirror {first}, and pierhead uses {speaks} at this address"
            ),
            format!("{setup} --address {}", url.trim_end_matches('/')),
        );
    }
    match of_daemon {
        None => Finding::ok(
            about,
            format!("uses the mirror {first} for {}", found.scope),
        ),
        Some(Ok(mirrors)) => {
            if mirrors.iter().any(|mirror| is_same_url(mirror, first)) {
                let what = format!("uses the mirror {first} for Docker Hub, and it is in effect");
                return Finding::ok(about, what);
            }
            let what = match mirrors.iter().find(|mirror| pierhead.is_mirror(mirror)) {
                Some(other) => {
                    format!(
                        "its configuration has the mirror {first}, but the running dockerd still uses {other}"
                    )
                }
                None => {
                    format!(
                        "its configuration has the mirror {first}, which is not in effect in the running dockerd"
                    )
                }
            };
            Finding::fail(about, what, "systemctl reload docker")
        }
        Some(Err(error)) => Finding::ok(
            about,
            format!(
                "its configuration has the mirror {first} for Docker Hub (cannot query dockerd: {error:#})"
            ),
        ),
    }
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
    use crate::doctor::report::Severity;

    #[tokio::test]
    async fn a_client_without_a_correct_mirror_gets_a_fix() {
        let config = Config::with_data("/nowhere".into());
        let pierhead = PierheadAddress::new(&RunningDaemon::Off, &config);
        let found = |mirrors: &[&str], problem: Option<&str>| ConfiguredMirrors {
            mirrors: mirrors.iter().map(|it| (*it).to_owned()).collect(),
            scope: "every registry".to_owned(),
            problem: problem.map(str::to_owned),
        };
        for (mirrors, problem, level) in [
            (&[][..], None, Severity::Warn),
            (&["https://mirror.lab"], None, Severity::Warn),
            (&["http://10.0.0.1:5000"], None, Severity::Ok),
            (&["10.0.0.1:5000/docker.io"], None, Severity::Ok),
            // A mirror of podman without a port.
            (&["mirror.gcr.io"], None, Severity::Warn),
            (&["https://10.0.0.1:5000"], None, Severity::Fail),
            (
                &["http://127.0.0.1:5000"],
                Some("no config_path"),
                Severity::Fail,
            ),
        ] {
            let finding = check_client(
                "x",
                Client::Containerd,
                "pierhead setup containerd",
                &found(mirrors, problem),
                &pierhead,
                Path::new("/nowhere"),
            )
            .await;
            assert_eq!(finding.level, level, "{finding:?}");
            assert_eq!(finding.fix.is_none(), level == Severity::Ok, "{finding:?}");
        }
    }

    #[test]
    fn a_mirror_without_port_has_the_port_of_the_listeners_scheme() {
        let mut config = Config::with_data("/nowhere".into());
        for (port, tls, mirror, expected) in [
            (80, false, "pierhead.example", true),
            (80, false, "pierhead.example/docker.io", true),
            (443, true, "pierhead.example", true),
            (443, false, "pierhead.example", false),
            (5000, false, "pierhead.example", false),
            (5000, true, "pierhead.example", false),
            (5000, true, "pierhead.example:5000", true),
        ] {
            config.listen = vec![([0, 0, 0, 0], port).into()];
            config.tls.cert = tls.then(|| "/nowhere".into());
            let pierhead = PierheadAddress::new(&RunningDaemon::Off, &config);
            let found = pierhead.is_mirror(mirror);
            assert_eq!(found, expected, "{mirror} {port} {tls}");
        }
    }

    /// Serves `GET /info` like dockerd.
    fn dockerd(socket: &Path, mirrors: &[&str]) -> tokio::task::JoinHandle<()> {
        let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
        let body = serde_json::json!({"RegistryConfig": {"Mirrors": mirrors}}).to_string();
        tokio::spawn(async move {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let (mut stream, _) = listener.accept().await.expect("a client");
            let read = stream.read(&mut [0; 4096]).await;
            assert!(read.is_ok_and(|bytes| bytes > 0));
            let response = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream
                .write_all(response.as_bytes())
                .await
                .expect("the response is sent");
        })
    }

    #[tokio::test]
    async fn the_mirror_of_docker_is_compared_with_dockerd_and_the_listener() {
        let mut config = Config::with_data("/nowhere".into());
        for (tls, file, daemon, level, words) in [
            (
                false,
                "http://a:5000",
                "http://a:5000/",
                Severity::Ok,
                "it is in effect",
            ),
            (
                false,
                "http://a:5000",
                "http://b:5000/",
                Severity::Fail,
                "still uses http://b:5000/",
            ),
            (
                false,
                "http://a:5000",
                "https://m.lab/",
                Severity::Fail,
                "not in effect",
            ),
            (
                true,
                "https://a:5000",
                "https://a:5000/",
                Severity::Ok,
                "it is in effect",
            ),
            (
                true,
                "https://a:5000",
                "http://a:5000/",
                Severity::Fail,
                "still uses http://a:5000/",
            ),
            (
                true,
                "http://a:5000",
                "http://a:5000/",
                Severity::Fail,
                "uses HTTPS",
            ),
            (
                false,
                "https://a:5000",
                "https://a:5000/",
                Severity::Fail,
                "uses plain HTTP",
            ),
            // The state after `pierhead setup docker --undo`.
            (
                false,
                "",
                "http://a:5000/",
                Severity::Warn,
                "still uses http://a:5000/",
            ),
            (
                false,
                "",
                "https://m.lab/",
                Severity::Warn,
                "directly from registries",
            ),
        ] {
            config.tls.cert = tls.then(|| "/nowhere".into());
            let pierhead = PierheadAddress::new(&RunningDaemon::Off, &config);
            let found = ConfiguredMirrors {
                mirrors: (!file.is_empty())
                    .then(|| file.to_owned())
                    .into_iter()
                    .collect(),
                ..ConfiguredMirrors::default()
            };
            let folder = tempfile::tempdir().expect("a folder");
            let socket = folder.path().join("docker.sock");
            let daemon = dockerd(&socket, &[daemon]);
            let setup = "pierhead setup docker";
            let finding =
                check_client("x", Client::Docker, setup, &found, &pierhead, &socket).await;
            daemon.await.expect("dockerd got the request");
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.what.contains(words), "{finding:?}");
            assert_eq!(finding.fix.is_none(), level == Severity::Ok, "{finding:?}");
        }
    }

    #[test]
    fn rootless_podman_is_set_up_with_the_user_flag() {
        let environment = Environment {
            user_config: Some("/home/u/.config".into()),
            user_state: Some("/home/u/.local/state".into()),
            ..Environment::read()
        };
        let command = |client, is_root| {
            let root = config_root_of(client, &environment, is_root);
            (root.is_user(), setup_command(client, &root))
        };
        let user = (true, "pierhead setup podman --user".to_owned());
        assert_eq!(command(Client::Podman, false), user);
        let machine = (false, "pierhead setup podman".to_owned());
        assert_eq!(command(Client::Podman, true), machine);
        let machine = (false, "pierhead setup docker".to_owned());
        assert_eq!(command(Client::Docker, false), machine);
    }
}
