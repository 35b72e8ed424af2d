//! Command prefixes that isolate test processes: an own network, own mounts, or the user root
//! without capabilities.

use std::{
    fs::{self, File},
    os::fd::AsFd as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    process,
    tool::{self, Missing},
    wait,
};

/// The `unshare` command that creates a namespace. For a user other than root, it also creates a
/// user namespace.
fn unshare(what: &str) -> Vec<String> {
    let mut words = vec!["unshare".to_owned(), what.to_owned()];
    if tool::root().is_err() {
        words.extend(["--user", "--map-root-user"].map(str::to_owned));
    }
    words
}

/// Checks that this machine allows the creation of namespaces.
pub fn available() -> Result<(), Missing> {
    for what in ["--net", "--mount"] {
        let words = unshare(what);
        let made = Command::new(&words[0])
            .args(&words[1..])
            .arg("true")
            .output();
        if !made.is_ok_and(|it| it.status.success()) {
            return Err(Missing::new(format!("`{}` is refused", words.join(" "))));
        }
    }
    tool::find(&["ip"]).map(drop)
}

/// A command prefix that runs a program as the user root without capabilities, so that file modes
/// apply to the program.
pub fn without_capabilities() -> Vec<String> {
    let words = [
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        "--",
    ];
    match tool::root() {
        Ok(()) => words.map(str::to_owned).to_vec(),
        Err(_) => Vec::new(),
    }
}

/// A command prefix that runs a program in a new mount namespace, after the shell script `script`
/// has mounted file systems.
pub fn mounted(script: &str) -> Vec<String> {
    let mut words = unshare("--mount");
    words.extend(["sh", "-ec", &format!("{script}\nexec \"$@\""), "sh"].map(str::to_owned));
    words
}

/// A network namespace with a loopback interface and the interfaces that the test adds. Dropping
/// the value removes the namespace.
#[derive(Debug)]
pub struct Network {
    holder: Child,
}

impl Network {
    /// Creates a namespace and enables its loopback interface.
    pub fn new() -> Result<Self> {
        let words = unshare("--net");
        let unshare = tool::find(&[&words[0]]).map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let holder = process::command(&unshare)
            .args(&words[1..])
            .args(["sleep", "infinity"])
            .stdout(Stdio::null())
            .spawn()
            .context("unshare")?;
        let network = Self { holder };
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
        let pid = network.holder.id().to_string();
        wait::until("a network namespace", || {
            // The process creates the user namespace first. Other processes can enter the user
            // namespace only after its ID map exists.
            let apart = matches!((of(&pid), of("self")), (Ok(its), Ok(ours)) if its != ours);
            Ok((apart && network.ip("link show lo").is_ok()).then_some(()))
        })?;
        network.ip("link set lo up")?;
        Ok(network)
    }

    /// A command prefix that runs a program in the namespace.
    pub fn enter(&self) -> Vec<String> {
        let mut words = vec![
            "nsenter".to_owned(),
            format!("--target={}", self.holder.id()),
        ];
        words.push("--net".to_owned());
        if tool::root().is_err() {
            words.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        words.push("--".to_owned());
        words
    }

    /// A command that runs in the namespace.
    pub fn command(&self, program: &Path) -> Command {
        let words = self.enter();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Runs a closure in a thread of the namespace. Sockets and processes that the closure creates
    /// stay in the namespace. Needs root.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = File::open(format!("/proc/{}/ns/net", self.holder.id()))?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                what()
            });
            inside.join().ok().context("it panicked")?
        })
    }

    /// Runs `ip` with these arguments in the namespace.
    pub fn ip(&self, words: &str) -> Result<String> {
        let ip = tool::find(&["ip"]).map_err(|missing| anyhow::anyhow!("{missing}"))?;
        process::run(self.command(&ip).args(words.split(' ')))
    }

    /// Sends a GET in the namespace. Returns the status, or `None` when the connection fails.
    pub fn get(&self, url: &str) -> Result<Option<u16>> {
        const SCRIPT: &str = "\
import http.client, sys, urllib.parse
url = urllib.parse.urlsplit(sys.argv[1])
try:
    c = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
    c.request('GET', url.path)
    print(c.getresponse().status)
except OSError as e:
    print('none', e)
";
        let python = tool::find(&["python3"]).map_err(|missing| anyhow::anyhow!("{missing}"))?;
        let said = process::run(self.command(&python).args(["-c", SCRIPT, url]))?;
        Ok(said.trim().parse().ok())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
