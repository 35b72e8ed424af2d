//! Command-line flags and tokens of the servers (etcd, API server and others) of the Kubernetes
//! control plane that `cargo xtask k8s` starts.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{binaries::Binaries, server};

const STAGES: &str = include_str!("stages.yaml");

/// Users of the API server, with the group from which they have their rights, unless the user name
/// itself has rights.
const USERS: &[(&str, &str)] = &[
    ("admin", "system:masters"),
    ("kwok", "system:masters"),
    ("system:kube-controller-manager", ""),
    ("system:kube-scheduler", ""),
];

/// Ports, files and secrets of the servers of one control plane.
pub(super) struct Settings<'a> {
    binaries: &'a Binaries,
    folder: PathBuf,
    etcd: u16,
    peers: u16,
    api: u16,
    kwok: u16,
}

impl<'a> Settings<'a> {
    /// Chooses ports and secrets, and writes the files of the servers below `folder`.
    ///
    /// # Errors
    /// No port is unused, or the folder cannot be written.
    pub(super) fn write(binaries: &'a Binaries, folder: &Path) -> Result<Self> {
        let [etcd, peers, api, kwok] = server::ports()?;
        let it = Self {
            binaries,
            folder: folder.to_owned(),
            etcd,
            peers,
            api,
            kwok,
        };
        fs::write(folder.join("stages.yaml"), STAGES)?;
        let mut tokens = String::new();
        for (user, group) in USERS {
            let token = secret()?;
            tokens += &format!("{token},{user},{user},{group}\n");
            private(&it.access(user), &it.access_file(&token))?;
        }
        private(&folder.join("tokens"), &tokens)?;
        Ok(it)
    }

    /// Path of the kubeconfig of `user`.
    pub(super) fn access(&self, user: &str) -> PathBuf {
        self.folder
            .join(format!("{}.access", user.replace(':', "-")))
    }

    fn access_file(&self, token: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: \"https://127.0.0.1:{}\", certificate-authority: \"{}\"}}}}]\n\
             users: [{{name: it, user: {{token: {token}}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n",
            self.api,
            self.own("apiserver.crt").display()
        )
    }

    /// Path of a file that the API server generates at its start.
    fn own(&self, name: &str) -> PathBuf {
        self.folder.join("certificates").join(name)
    }

    pub(super) fn etcd(&self) -> Command {
        let clients = format!("http://127.0.0.1:{}", self.etcd);
        let peers = format!("http://127.0.0.1:{}", self.peers);
        let mut command = Command::new(&self.binaries.etcd);
        command
            .arg(option("data-dir", self.folder.join("etcd").display()))
            .arg(option("listen-client-urls", &clients))
            .arg(option("advertise-client-urls", &clients))
            .arg(option("listen-peer-urls", &peers))
            .arg(option("initial-advertise-peer-urls", &peers))
            .arg(option("initial-cluster", format!("default={peers}")));
        command
    }

    pub(super) fn api_server(&self) -> Command {
        // The key of the API server's certificate also signs the tokens of service accounts. No
        // part of the suite uses these tokens.
        let key = self.own("apiserver.key");
        let mut command = Command::new(self.binaries.kubernetes("kube-apiserver"));
        command
            .arg(option(
                "etcd-servers",
                format!("http://127.0.0.1:{}", self.etcd),
            ))
            .arg("--bind-address=127.0.0.1")
            .arg("--advertise-address=127.0.0.1")
            // A loopback address cannot be the endpoint of a Service, so the API server must not
            // create this endpoint.
            .arg("--endpoint-reconciler-type=none")
            .arg(option("secure-port", self.api))
            .arg(option(
                "cert-dir",
                self.folder.join("certificates").display(),
            ))
            .arg(option(
                "token-auth-file",
                self.folder.join("tokens").display(),
            ))
            .arg("--authorization-mode=Node,RBAC")
            .arg("--anonymous-auth=false")
            .arg("--allow-privileged=true")
            // kwok watches from resource version 0. With the feature WatchList, such a watch needs
            // a feature of etcd that Debian's etcd (3.4) lacks. Each watch ended immediately, and
            // began again up to a minute later.
            .arg("--feature-gates=WatchList=false")
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(option("service-account-key-file", key.display()))
            .arg(option("service-account-signing-key-file", key.display()));
        command
    }

    pub(super) fn controller_manager(&self) -> Command {
        let access = self.access("system:kube-controller-manager");
        let mut command = Command::new(self.binaries.kubernetes("kube-controller-manager"));
        command
            .arg(option("kubeconfig", access.display()))
            .arg(option("root-ca-file", self.own("apiserver.crt").display()))
            .arg(option(
                "service-account-private-key-file",
                self.own("apiserver.key").display(),
            ))
            .args(["--use-service-account-credentials", "--leader-elect=false"])
            // On a busy machine, kwok renews the leases of its nodes late. No test of the suite
            // needs the detection of dead nodes.
            .arg("--node-monitor-grace-period=1h")
            // The server needs no port.
            .arg("--secure-port=0");
        command
    }

    pub(super) fn scheduler(&self) -> Command {
        let mut command = Command::new(self.binaries.kubernetes("kube-scheduler"));
        command
            .arg(option(
                "kubeconfig",
                self.access("system:kube-scheduler").display(),
            ))
            .args(["--leader-elect=false", "--secure-port=0"]);
        command
    }

    pub(super) fn kwok(&self) -> Command {
        let mut command = Command::new(self.binaries.kwok());
        command
            .arg(option("kubeconfig", self.access("kwok").display()))
            .arg(option("config", self.folder.join("stages.yaml").display()))
            .arg("--manage-all-nodes=true")
            .arg(option("server-address", format!("127.0.0.1:{}", self.kwok)));
        command
    }
}

fn option(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// A random secret of 128 bits.
fn secret() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut it| it.read_exact(&mut bytes))
        .context("random bits")?;
    Ok(bytes.iter().map(|it| format!("{it:02x}")).collect())
}

/// Writes a file that only its owner may read.
fn private(path: &Path, text: &str) -> Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}
