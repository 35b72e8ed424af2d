//! The clients on this machine: whether they are set up to ask pierhead, and really do.

use std::env;
use std::path::{Path, PathBuf};

use pierhead_client_setup::{Address, Client, ConfigRoot, ConfiguredMirrors};

use super::daemon::Running;
use super::docker_socket;
use super::report::Finding;
use crate::cli::doctor::DoctorArgs;
use crate::config::Config;
use crate::environment::Environment;

/// Those that are installed; a machine without any is told so.
pub(crate) async fn look(
    running: &Running,
    config: &Config,
    environment: &Environment,
    args: &DoctorArgs,
) -> Vec<Finding> {
    let ours = Ours::new(running, config);
    let is_root = rustix::process::geteuid().is_root();
    let mut findings = Vec::new();
    for client in Client::ALL {
        if !is_installed(client, environment) {
            continue;
        }
        let about = format!("client {}", client.name());
        let root = config_root_of(client, environment, is_root);
        match ConfiguredMirrors::read(&root, client, args.docker_config.as_deref()) {
            Ok(found) => {
                let setup = setup_command(client, &root);
                let finding = one(&about, client, &setup, &found, &ours, &args.docker_socket);
                findings.push(finding.await);
            }
            Err(error) => findings.push(Finding::fail(
                about,
                format!("{:#}", anyhow::Error::from(error)),
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

/// Where a client's files are: the podman of a user who is not root reads that user's own, too.
fn config_root_of(client: Client, environment: &Environment, is_root: bool) -> ConfigRoot {
    match (&environment.user_config, &environment.user_state) {
        (Some(config), Some(state)) if client == Client::Podman && !is_root => {
            ConfigRoot::user(config, state)
        }
        _ => ConfigRoot::system(Path::new("/")),
    }
}

/// The command that sets up a client of that place.
fn setup_command(client: Client, root: &ConfigRoot) -> String {
    let user = if root.is_user() { " --user" } else { "" };
    format!("pierhead setup {}{user}", client.name())
}

/// The addresses that mean this pierhead.
struct Ours {
    ports: Vec<u16>,
    /// Whether clients reach it by HTTPS.
    tls: bool,
    shown: String,
}

impl Ours {
    fn new(running: &Running, config: &Config) -> Self {
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

    /// A client may know us by any name of ours; the port tells.
    fn is(&self, mirror: &str) -> bool {
        let parsed = mirror.split('/').next().filter(|_| !mirror.contains("://"));
        let address: Option<Address> = parsed.unwrap_or(mirror).parse().ok();
        address.is_some_and(|address| self.ports.contains(&address.port()))
    }

    /// The URL that a mirror of ours should have, where its scheme is another than that of our listener.
    fn right_url(&self, mirror: &str) -> Option<String> {
        let (scheme, rest) = mirror.split_once("://")?;
        let ours = if self.tls { "https" } else { "http" };
        (!scheme.eq_ignore_ascii_case(ours)).then(|| format!("{ours}://{rest}"))
    }
}

/// dockerd shows a URL with a final slash.
fn is_same_url(one: &str, other: &str) -> bool {
    let bare = |url: &str| url.trim_end_matches('/').to_ascii_lowercase();
    bare(one) == bare(other)
}

async fn one(
    about: &str,
    client: Client,
    setup: &str,
    found: &ConfiguredMirrors,
    ours: &Ours,
    docker: &Path,
) -> Finding {
    let mine = || found.mirrors.iter().filter(|mirror| ours.is(mirror));
    let right = mine().find(|mirror| ours.right_url(mirror).is_none());
    let of_daemon = match client {
        Client::Docker => Some(docker_socket::mirrors(docker).await),
        _ => None,
    };
    let Some(first) = right.or_else(|| mine().next()) else {
        let known = of_daemon.and_then(Result::ok).unwrap_or_default();
        if let Some(mirror) = known.iter().find(|mirror| ours.is(mirror)) {
            return Finding::warn(
                about,
                format!("its file names no pierhead, and its running daemon still asks {mirror}"),
                format!(
                    "`systemctl restart docker`, which ends containers unless live-restore is on; or `{setup}`"
                ),
            );
        }
        let what = match found.mirrors.as_slice() {
            [] => "pulls from the registries themselves".to_owned(),
            [other, ..] => format!("asks {other}, and not the pierhead at {}", ours.shown),
        };
        return Finding::warn(about, what, setup);
    };
    if let Some(problem) = &found.problem {
        return Finding::fail(about, problem, setup);
    }
    if let Some(url) = ours.right_url(first) {
        let speaks = if ours.tls { "HTTPS" } else { "plain HTTP" };
        return Finding::fail(
            about,
            format!("its file names {first}, and pierhead speaks {speaks} there"),
            format!("{setup} --address {}", url.trim_end_matches('/')),
        );
    }
    match of_daemon {
        None => Finding::ok(about, format!("asks {first} for {}", found.scope)),
        Some(Ok(mirrors)) => {
            if mirrors.iter().any(|mirror| is_same_url(mirror, first)) {
                let what = format!("asks {first} for Docker Hub, and its daemon knows");
                return Finding::ok(about, what);
            }
            let what = match mirrors.iter().find(|mirror| ours.is(mirror)) {
                Some(other) => {
                    format!("its file names {first}, and its running daemon still asks {other}")
                }
                None => {
                    format!("its file names {first}, and its running daemon does not know of it")
                }
            };
            Finding::fail(about, what, "systemctl reload docker")
        }
        Some(Err(error)) => Finding::ok(
            about,
            format!(
                "its file names {first} for Docker Hub (its daemon cannot be asked: {error:#})"
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
    use crate::doctor::report::Level;

    #[tokio::test]
    async fn who_asks_us_is_told_from_who_does_not() {
        let config = Config::with_data("/nowhere".into());
        let ours = Ours::new(&Running::Off, &config);
        let found = |mirrors: &[&str], problem: Option<&str>| ConfiguredMirrors {
            mirrors: mirrors.iter().map(|it| (*it).to_owned()).collect(),
            scope: "every registry".to_owned(),
            problem: problem.map(str::to_owned),
        };
        for (mirrors, problem, level) in [
            (&[][..], None, Level::Warn),
            (&["https://mirror.lab"], None, Level::Warn),
            (&["http://10.0.0.1:5000"], None, Level::Ok),
            (&["10.0.0.1:5000/docker.io"], None, Level::Ok),
            (&["https://10.0.0.1:5000"], None, Level::Fail),
            (
                &["http://127.0.0.1:5000"],
                Some("no config_path"),
                Level::Fail,
            ),
        ] {
            let finding = one(
                "x",
                Client::Containerd,
                "pierhead setup containerd",
                &found(mirrors, problem),
                &ours,
                Path::new("/nowhere"),
            )
            .await;
            assert_eq!(finding.level, level, "{finding:?}");
            assert_eq!(finding.fix.is_none(), level == Level::Ok, "{finding:?}");
        }
    }

    /// Answers `GET /info` as dockerd does.
    fn dockerd(socket: &Path, mirrors: &[&str]) -> tokio::task::JoinHandle<()> {
        let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
        let body = serde_json::json!({"RegistryConfig": {"Mirrors": mirrors}}).to_string();
        tokio::spawn(async move {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let (mut stream, _) = listener.accept().await.expect("a client");
            let read = stream.read(&mut [0; 4096]).await;
            assert!(read.is_ok_and(|bytes| bytes > 0));
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream
                .write_all(answer.as_bytes())
                .await
                .expect("it is taken");
        })
    }

    #[tokio::test]
    async fn the_whole_url_of_dockers_file_is_compared_with_its_daemon_and_the_listener() {
        let mut config = Config::with_data("/nowhere".into());
        for (tls, file, daemon, level, words) in [
            (
                false,
                "http://a:5000",
                "http://a:5000/",
                Level::Ok,
                "its daemon knows",
            ),
            (
                false,
                "http://a:5000",
                "http://b:5000/",
                Level::Fail,
                "still asks http://b:5000/",
            ),
            (
                false,
                "http://a:5000",
                "https://m.lab/",
                Level::Fail,
                "does not know",
            ),
            (
                true,
                "https://a:5000",
                "https://a:5000/",
                Level::Ok,
                "its daemon knows",
            ),
            (
                true,
                "https://a:5000",
                "http://a:5000/",
                Level::Fail,
                "still asks http://a:5000/",
            ),
            (
                true,
                "http://a:5000",
                "http://a:5000/",
                Level::Fail,
                "speaks HTTPS",
            ),
            (
                false,
                "https://a:5000",
                "https://a:5000/",
                Level::Fail,
                "speaks plain HTTP",
            ),
            // After `setup docker --undo`.
            (
                false,
                "",
                "http://a:5000/",
                Level::Warn,
                "still asks http://a:5000/",
            ),
            (
                false,
                "",
                "https://m.lab/",
                Level::Warn,
                "registries themselves",
            ),
        ] {
            config.tls.cert = tls.then(|| "/nowhere".into());
            let ours = Ours::new(&Running::Off, &config);
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
            let finding = one("x", Client::Docker, setup, &found, &ours, &socket).await;
            daemon.await.expect("it was asked");
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.what.contains(words), "{finding:?}");
            assert_eq!(finding.fix.is_none(), level == Level::Ok, "{finding:?}");
        }
    }

    #[test]
    fn the_podman_of_a_user_has_files_of_its_own() {
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
