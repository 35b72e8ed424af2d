//! Command prefixes that isolate test processes: an own network, own mounts, or the user root
//! without capabilities.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process;
use crate::tool::{self, Missing};

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
///
/// # Errors
/// The missing program or right.
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
/// the value ends its process, and the kernel removes the namespace with its interfaces.
#[derive(Debug)]
pub struct Network {
    /// A `cat` in the namespace. It ends when its input closes, even if this process is killed.
    holder: Child,
}

impl Network {
    /// Creates a namespace and enables its loopback interface.
    ///
    /// # Errors
    /// The machine refuses namespaces, or `unshare` or `ip` is missing.
    pub fn new() -> Result<Self> {
        let words = unshare("--net");
        let holder = Command::new(tool::find(&[&words[0]])?)
            .args(&words[1..])
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("unshare")?;
        let mut network = Self { holder };
        let Child { stdin, stdout, .. } = &mut network.holder;
        stdin.as_mut().context("no pipe")?.write_all(b"?")?;
        // `unshare` starts `cat` after it has created the namespaces and the ID map.
        let echoed = stdout.as_mut().context("no pipe")?.read_exact(&mut [0]);
        echoed.context("`unshare` created no network namespace")?;
        network.ip("link set lo up")?;
        Ok(network)
    }

    /// The process ID that `ip` accepts as the namespace of a device.
    pub fn id(&self) -> u32 {
        self.holder.id()
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.id())
    }

    /// A command prefix that runs a program in the namespace and kills it when the thread that
    /// starts it ends.
    pub fn enter(&self) -> Vec<String> {
        let target = format!("--target={}", self.id());
        let words = ["setpriv", "--pdeathsig", "KILL", "--"].into_iter();
        let mut words: Vec<&str> = words.chain(["nsenter", &target, "--net"]).collect();
        if tool::root().is_err() {
            words.extend(["--user", "--preserve-credentials"]);
        }
        words.push("--");
        words.into_iter().map(str::to_owned).collect()
    }

    /// A command that runs in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let words = self.enter();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program);
        command
    }

    /// Runs a closure in a thread of the namespace. Sockets, devices, processes and threads that
    /// the closure creates stay in the namespace. Needs root.
    ///
    /// # Errors
    /// The errors of the closure; the thread cannot enter the namespace.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let file = File::open(self.path())?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
                what()
            });
            inside.join().ok().context("it panicked")?
        })
    }

    /// Runs these lines by `ip -batch` in the namespace.
    ///
    /// # Errors
    /// `ip` fails; the error contains its output.
    pub fn ip(&self, lines: &str) -> Result<()> {
        let mut child = self
            .command(tool::find(&["ip"])?)
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("ip")?;
        let mut stdin = child.stdin.take().context("no pipe")?;
        stdin.write_all(format!("{lines}\n").as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "ip {lines}: {message}");
        Ok(())
    }

    /// Sets keys below `/proc/sys/net/ipv4`. Needs root.
    ///
    /// # Errors
    /// The kernel refuses a value.
    pub fn ipv4(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.inside(|| {
            for (key, value) in settings {
                let file = format!("/proc/sys/net/ipv4/{key}");
                fs::write(&file, value).with_context(|| format!("{file} = {value}"))?;
            }
            Ok(())
        })
    }

    /// Sends a GET in the namespace. Returns the status, or `None` when the connection fails.
    ///
    /// # Errors
    /// `python3` is missing or fails.
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
        let python = tool::find(&["python3"])?;
        let output = process::run(self.command(python).args(["-c", SCRIPT, url]))?;
        Ok(output.trim().parse().ok())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_network_is_removed_with_its_interfaces() {
        if tool::or_skip(available()).is_none() || tool::or_skip(tool::root()).is_none() {
            return;
        }
        let network = Network::new().expect("a namespace");
        let add = "link add there type veth";
        network
            .ip(&format!("{add}\nlink set there up"))
            .expect("an interface");
        let devices = || Ok(fs::read_to_string("/proc/thread-self/net/dev")?);
        assert!(network.inside(devices).expect("a list").contains("there:"));
        assert!(!devices().expect("a list").contains("there:"));
        let error = network
            .ip(add)
            .expect_err("a second interface of this name");
        assert!(
            error.to_string().starts_with("ip link add there"),
            "{error}"
        );
        let path = network.path();
        drop(network);
        assert!(!fs::exists(path).expect("a path"));
    }

    #[test]
    fn a_program_runs_in_the_network_and_its_settings() {
        if tool::or_skip(available()).is_none() || tool::or_skip(tool::root()).is_none() {
            return;
        }
        let network = Network::new().expect("a namespace");
        let settings = [("ip_forward", "1"), ("ip_default_ttl", "9")];
        network.ipv4(&settings).expect("keys of the kernel");
        let ttl = "/proc/sys/net/ipv4/ip_default_ttl";
        let inside = process::run(network.command("cat").arg(ttl)).expect("cat");
        assert_eq!(inside, "9\n");
        assert_ne!(fs::read_to_string(ttl).expect("a key"), "9\n");
        assert_eq!(network.get("http://127.0.0.1:9/").expect("python3"), None);
    }

    #[test]
    fn a_mount_is_visible_only_to_the_program() {
        if tool::or_skip(available()).is_none() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        let words = mounted(&format!("mount -t tmpfs none {at}\necho text > {at}/file"));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .arg("cat")
            .arg(folder.path().join("file"));
        assert_eq!(
            process::run(&mut command).expect("a mounted file"),
            "text\n"
        );
        assert!(!folder.path().join("file").exists());
    }
}
