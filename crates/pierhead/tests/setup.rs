//! Tests of `pierhead setup`, which configures container clients, on folders that stand for `/`.
//! Also tests of `--hold` and of `--undo`, which restores every byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Time limit of each wait. Only a process that hangs exceeds this time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The root folder of a fake host.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let machine = Self(tempfile::tempdir().expect("a folder"));
        for (path, text) in files {
            let path = machine.path(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            fs::write(path, text).expect("written");
        }
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn command(&self, client: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pierhead"));
        // No daemon listens on 127.0.0.1:1.
        command.args(["setup", client, "--admin", "127.0.0.1:1", "--root"]);
        command.arg(self.0.path()).args(more);
        command
    }

    fn run(&self, client: &str, more: &[&str]) -> Output {
        let mut command = self.command(client, more);
        command.arg("--yes").output().expect("pierhead runs")
    }

    /// Starts `pierhead setup --hold`, as the pod of the Helm chart `pierhead-host` does.
    fn hold(&self, client: &str, more: &[&str]) -> HoldingSetup {
        let mut command = self.command(client, more);
        command
            .args(["--hold", "--yes"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
        let pipe = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in pipe.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        HoldingSetup { child, lines }
    }

    /// Runs `pierhead setup`. The command must succeed. Returns standard output.
    #[track_caller]
    fn ok(&self, client: &str, more: &[&str]) -> String {
        let output = self.run(client, more);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{client} {more:?}: {output_text}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    #[track_caller]
    fn refuses(&self, client: &str, more: &[&str]) -> String {
        let before = self.everything();
        let output = self.run(client, more);
        assert_eq!(output.status.code(), Some(1), "{client} {more:?}");
        assert_eq!(self.everything(), before, "a refusal changes nothing");
        String::from_utf8(output.stderr).expect("UTF-8")
    }

    /// Returns every file and folder below the root, with its mode and contents.
    fn everything(&self) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        fn visit(folder: &Path, found: &mut BTreeMap<PathBuf, (u32, Vec<u8>)>) {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let about = fs::symlink_metadata(&path).expect("metadata");
                if about.is_dir() {
                    found.insert(path.clone(), (about.permissions().mode(), Vec::new()));
                    visit(&path, found);
                } else if about.is_symlink() {
                    let to = fs::read_link(&path).expect("a link");
                    found.insert(path, (0, to.into_os_string().into_encoded_bytes()));
                } else {
                    let bytes = fs::read(&path).expect("a file");
                    found.insert(path, (about.permissions().mode(), bytes));
                }
            }
        }
        let mut found = BTreeMap::new();
        visit(self.0.path(), &mut found);
        found
    }
}

/// A running `pierhead setup --hold`. Dropping this value kills the process.
struct HoldingSetup {
    child: Child,
    /// Lines of standard error. The channel closes when the process ends.
    lines: Receiver<String>,
}

impl HoldingSetup {
    /// Waits until the process has written the setup.
    fn wait_until_held(&self) {
        loop {
            let line = self.lines.recv_timeout(TIMEOUT);
            if line.expect("it holds").contains("holding the setup") {
                return;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("an id"), signal).expect("the process receives the signal");
    }

    /// Waits until the process exits. Returns the exit status, and the lines that the process
    /// printed since the setup.
    fn ended(mut self) -> (ExitStatus, String) {
        let mut all = String::new();
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => all.push_str(&(line + "\n")),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(error) => panic!("it did not end ({error}): {all}"),
            }
        }
        (self.child.wait().expect("a child process"), all)
    }
}

impl Drop for HoldingSetup {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DOCKER: &str = "etc/docker/daemon.json";
const CONTAINERD: &str = "etc/containerd/config.toml";
const DEFAULT: &str = "etc/containerd/certs.d/_default/hosts.toml";
const PODMAN: &str = "etc/containers/registries.conf.d/50-pierhead.conf";
const LOOPBACK: &str = "http://127.0.0.1:5000";

/// For different original files: runs the setup twice, runs it with another address, and undoes it.
#[test]
fn an_undo_restores_every_byte() {
    let cases: [(&str, &[(&str, &str)]); 12] = [
        ("docker", &[]),
        ("docker", &[(DOCKER, "")]),
        ("docker", &[(DOCKER, "{}")]),
        (
            "docker",
            &[(
                DOCKER,
                "{\r\n\t\"debug\" : true,\r\n\t\"registry-mirrors\": [ \"https://m.example\" ]\r\n}",
            )],
        ),
        (
            "docker",
            &[(DOCKER, "  {\"log-opts\":{\"max-size\":\"10m\"}}\n\n\n")],
        ),
        ("containerd", &[]),
        (
            "containerd",
            &[(
                CONTAINERD,
                "# mine\r\nversion = 2\r\n[plugins.'io.containerd.grpc.v1.cri']\r\n  x = 1",
            )],
        ),
        (
            "containerd",
            &[(
                CONTAINERD,
                "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
            )],
        ),
        (
            "containerd",
            &[
                (CONTAINERD, "version = 3\n"),
                (DEFAULT, "server = \"https://x\"\n[host.\"https://y\"]\n"),
            ],
        ),
        ("podman", &[]),
        ("crio", &[("etc/containers/registries.conf", "# none\n")]),
        (
            "podman",
            &[(
                "etc/containers/registries.conf.d/10-a.conf",
                "[[registry]]\nlocation=\"quay.io\"\n[[registry.mirror]]\nlocation=\"m.lab\"\n",
            )],
        ),
    ];
    for (client, files) in cases {
        let machine = Machine::new(files);
        let before = machine.everything();
        let shown = machine.ok(client, &["--dry-run"]);
        assert!(shown.contains("+++"), "{client} {files:?}: {shown}");
        assert_eq!(machine.everything(), before, "a dry run writes nothing");

        assert_eq!(
            machine.ok(client, &[]),
            shown,
            "what is shown is what is done"
        );
        let once = machine.everything();
        assert_ne!(once, before);
        assert_eq!(
            machine.ok(client, &[]),
            "",
            "a second time there is nothing to do"
        );
        assert_eq!(machine.everything(), once);

        let elsewhere = ["--address", "http://10.9.8.7:5000"];
        let shown = machine.ok(client, &elsewhere);
        assert!(shown.contains("10.9.8.7"), "{shown}");
        let fresh = Machine::new(files);
        fresh.ok(client, &elsewhere);
        // The record of the setup also has the original files that the second run found.
        let relative = |machine: &Machine| -> BTreeMap<_, _> {
            let mut all = BTreeMap::new();
            for (path, what) in machine.everything() {
                let path = path.strip_prefix(machine.0.path()).expect("inside");
                if !path.starts_with("var") {
                    all.insert(path.to_owned(), what);
                }
            }
            all
        };
        assert_eq!(
            relative(&machine),
            relative(&fresh),
            "the first address leaves nothing behind"
        );

        machine.ok(client, &["--undo", "--dry-run"]);
        machine.ok(client, &["--undo"]);
        let left = machine.everything();
        assert_eq!(left, before, "{client} {files:?}");
        assert_eq!(
            machine.ok(client, &["--undo"]),
            "",
            "there is nothing more to undo"
        );
    }
}

#[test]
fn docker_can_use_a_mirror_on_another_host_without_tls() {
    let machine = Machine::new(&[]);
    machine.ok("docker", &["--address", "http://10.0.0.1:5000"]);
    let text = machine.read(DOCKER);
    assert!(
        text.contains("\"insecure-registries\": [\"10.0.0.1:5000\"]"),
        "{text}"
    );
    assert!(
        text.contains("\"registry-mirrors\": [\"http://10.0.0.1:5000\"]"),
        "{text}"
    );
}

/// Tests that setup handles imports of containerd 1.x: there, a section of an imported file
/// replaces the same section of the main file.
#[test]
fn a_drop_in_keeps_the_section_of_the_main_file() {
    let imports = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    let plain = Machine::new(&[(CONTAINERD, &format!("version = 2\n{imports}"))]);
    plain.ok("containerd", &[]);
    assert_eq!(plain.read(CONTAINERD), format!("version = 2\n{imports}"));
    assert!(
        plain
            .read("etc/containerd/conf.d/50-pierhead.toml")
            .contains("config_path")
    );

    let section = "[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"p\"\n";
    let text = format!("version = 2\n{imports}{section}");
    let machine = Machine::new(&[(CONTAINERD, &text)]);
    machine.ok("containerd", &[]);
    assert!(machine.read(CONTAINERD).contains("config_path"));
    assert!(!machine.path("etc/containerd/conf.d").exists());

    let machine = Machine::new(&[
        (CONTAINERD, &format!("version = 2\n{imports}")),
        (
            "etc/containerd/conf.d/cri.toml",
            &format!("version = 2\n{section}"),
        ),
    ]);
    machine.ok("containerd", &[]);
    assert!(
        machine
            .read("etc/containerd/conf.d/cri.toml")
            .contains("config_path")
    );

    // Setup uses an existing `config_path`, and changes no other file.
    let text = format!(
        "version = 2\n{section}[plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = \"/srv/hosts:/b\"\n"
    );
    let machine = Machine::new(&[(CONTAINERD, &text)]);
    machine.ok("containerd", &[]);
    assert_eq!(machine.read(CONTAINERD), text);
    assert!(
        machine
            .read("srv/hosts/_default/hosts.toml")
            .contains(LOOPBACK)
    );
}

#[test]
fn a_registry_with_its_own_hosts_file_is_reported_or_merged() {
    let own = "etc/containerd/certs.d/docker.io/hosts.toml";
    let text = "server = \"https://registry-1.docker.io\"\n\n[host.\"https://m.lab\"]\n";
    let machine = Machine::new(&[(own, text)]);
    let output = machine.run("containerd", &[]);
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output_text.contains("--registry docker.io"),
        "{output_text}"
    );
    let note = "--hosts-dir /etc/containerd/certs.d";
    assert!(output_text.contains(note), "{output_text}");
    assert_eq!(machine.read(own), text);
    machine.ok("containerd", &["--registry", "docker.io"]);
    let merged = machine.read(own);
    let at = |word: &str| {
        merged
            .find(word)
            .unwrap_or_else(|| panic!("{word} in {merged}"))
    };
    assert!(at("server") < at(LOOPBACK) && at(LOOPBACK) < at("m.lab"));
    // With --registry, the files of other registries do not change.
    assert!(!machine.path(DEFAULT).exists());
}

#[test]
fn the_ca_is_written_to_the_path_that_each_client_reads() {
    let key = rcgen::generate_simple_self_signed(["p.example".to_owned()]).expect("a certificate");
    let machine = Machine::new(&[]);
    let ca = machine.path("ca.pem");
    fs::write(&ca, key.cert.pem()).expect("written");
    let ca = ca.to_str().expect("UTF-8");
    for (client, path) in [
        ("docker", "etc/docker/certs.d/p.example:5000/ca.crt"),
        (
            "containerd",
            "etc/containerd/certs.d/_default/pierhead-ca.crt",
        ),
        ("podman", "etc/containers/certs.d/p.example:5000/ca.crt"),
    ] {
        machine.ok(client, &["--address", "https://p.example:5000", "--ca", ca]);
        assert_eq!(machine.read(path), key.cert.pem());
    }
    assert!(machine.read(DEFAULT).contains("ca = \"pierhead-ca.crt\""));
    assert!(!machine.read(PODMAN).contains("insecure"));
    let output_text = machine.refuses("docker", &["--address", LOOPBACK, "--ca", ca]);
    assert!(output_text.contains("https://"), "{output_text}");
}

#[test]
fn mode_and_symbolic_links_are_kept() {
    let machine = Machine::new(&[("srv/real.json", "{}\n")]);
    fs::set_permissions(
        machine.path("srv/real.json"),
        fs::Permissions::from_mode(0o640),
    )
    .expect("chmod");
    fs::create_dir_all(machine.path("etc/docker")).expect("made");
    symlink("../../srv/real.json", machine.path(DOCKER)).expect("a link");
    let before = machine.everything();
    machine.ok("docker", &[]);
    assert!(machine.path(DOCKER).is_symlink());
    assert!(machine.read("srv/real.json").contains(LOOPBACK));
    let mode = fs::metadata(machine.path("srv/real.json"))
        .expect("there")
        .mode();
    assert_eq!(mode & 0o7777, 0o640);
    // The record of the setup may contain secrets of the client's configuration, so other users
    // cannot read it.
    let record = machine.path("var/lib/pierhead-setup/docker.json");
    assert_eq!(fs::metadata(record).expect("there").mode() & 0o077, 0);
    machine.ok("docker", &["--undo"]);
    let left = machine.everything();
    assert_eq!(left, before);

    // If setup followed a link to a path outside of --root, it would change the host of the test.
    let outside = tempfile::tempdir().expect("a folder");
    let target = outside.path().join("daemon.json");
    fs::write(&target, "{}").expect("written");
    fs::remove_file(machine.path(DOCKER)).expect("removed");
    symlink(&target, machine.path(DOCKER)).expect("a link");
    let output = machine.run("docker", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(target).expect("there"), "{}");
    assert!(!machine.path("var/lib/pierhead-setup/docker.json").exists());
}

#[test]
fn later_changes_of_others_are_kept_or_reported() {
    let machine = Machine::new(&[(CONTAINERD, "version = 2\n# one\n# two\n# three\n# four\n")]);
    machine.ok("containerd", &[]);
    let theirs = machine.read(CONTAINERD).replace("# one", "root = \"/srv\"");
    fs::write(machine.path(CONTAINERD), theirs).expect("written");
    machine.ok("containerd", &["--undo"]);
    assert_eq!(
        machine.read(CONTAINERD),
        "version = 2\nroot = \"/srv\"\n# two\n# three\n# four\n"
    );

    let machine = Machine::new(&[(DOCKER, "{}\n")]);
    machine.ok("docker", &[]);
    let both = "{\"registry-mirrors\": [\"http://127.0.0.1:5000\", \"https://mine\"]}\n";
    fs::write(machine.path(DOCKER), both).expect("written");
    for arguments in [&["--undo"][..], &["--address", "http://10.0.0.1:1"]] {
        let output_text = machine.refuses("docker", arguments);
        assert!(
            output_text.contains("was edited at or next to the lines of pierhead")
                && output_text.contains("-  \"registry-mirrors\": [\"http://127"),
            "{output_text}"
        );
    }
}

#[test]
fn a_held_setup_without_an_address_uses_the_default_address() {
    for client in ["docker", "containerd", "podman", "crio"] {
        let machine = Machine::new(&[]);
        let before = machine.everything();
        let held = machine.hold(client, &[]);
        held.wait_until_held();
        let written = machine.everything();
        let names = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("127.0.0.1:5000");
        assert!(written.values().any(|(_, bytes)| names(bytes)), "{client}");
        held.signal(Signal::TERM);
        let (status, output_text) = held.ended();
        assert!(status.success(), "{client}: {output_text}");
        assert_eq!(machine.everything(), before, "{client}");
    }
}

#[test]
fn a_setup_that_has_nothing_to_change_ignores_edits() {
    let machine = Machine::new(&[(DOCKER, "{\n  \"log-level\": \"info\"\n}\n")]);
    machine.ok("docker", &[]);
    let edited = machine.read(DOCKER).replace("info", "warn");
    fs::write(machine.path(DOCKER), &edited).expect("written");
    machine.ok("docker", &[]);
    assert_eq!(machine.read(DOCKER), edited);
    machine.refuses("docker", &["--address", "http://10.0.0.1:1"]);
}

#[test]
fn an_address_without_a_registry_is_a_warning() {
    let home = tempfile::tempdir().expect("a folder");
    let setup = |port: u16, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pierhead"));
        let address = format!("http://127.0.0.1:{port}");
        command.args(["setup", "podman", "--user", "--yes", "--address", &address]);
        command.args(more).env("HOME", home.path());
        command
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME");
        let output = command.output().expect("pierhead runs");
        let output_text = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success(), "{output_text}");
        output_text
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // Each fake server handles one request.
    let answers = [
        "HTTP/1.1 401 no\r\n\r\n",
        "HTTP/1.1 404 no\r\n\r\n",
        "SSH-2.0-something",
    ];
    let served = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a question");
            std::io::Write::write_all(&mut stream, answer.as_bytes()).expect("answered");
            // Reads from the connection until the client closes it.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let output_text = setup(port, &["--dry-run"]);
    assert!(!output_text.contains("warning"), "{output_text}");
    let output_text = setup(port, &["--dry-run"]);
    assert!(
        output_text.contains("warning: there is a server that is no registry (404) at http://127"),
        "{output_text}"
    );
    assert!(setup(port, &["--dry-run"]).contains("does not speak HTTP"));
    served.join().expect("it answered");
    let written = home
        .path()
        .join(".config/containers/registries.conf.d/50-pierhead.conf");
    assert!(!written.exists());
    let output_text = setup(port, &[]);
    let check = format!("`curl -si http://127.0.0.1:{port}/v2/`");
    assert!(
        output_text.contains("warning: no server accepts connections")
            && output_text.contains(&check),
        "{output_text}"
    );
    assert!(written.exists());
}

/// Tests that a client is not restarted if the undo finds no setup, since a restart of dockerd stops
/// containers.
#[test]
fn an_undo_without_a_setup_does_not_restart_the_client() {
    let home = Machine::new(&[
        (".config/docker/daemon.json", "not JSON"),
        (
            "bin/systemctl",
            "#!/bin/sh\n: > \"${0%/bin/systemctl}/restarted\"\n",
        ),
    ]);
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(home.path("bin/systemctl"), executable).expect("executable");
    for (more, code) in [(["--undo", "--restart"], 0), (["--hold", "--restart"], 1)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pierhead"));
        command.args([
            "setup",
            "docker",
            "--user",
            "--yes",
            "--admin",
            "127.0.0.1:1",
        ]);
        command.args(more).env("HOME", home.path(""));
        command
            .env("PATH", home.path("bin"))
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME");
        let output = command.output().expect("pierhead runs");
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(code), "{more:?}: {text}");
        // Without systemd, the attempt to restart is an error.
        assert!(!text.contains("systemd"), "{more:?}: {text}");
        assert!(!home.path("restarted").exists(), "{more:?}");
    }
}

/// Tests that a file which the user has edited does not prevent the undo of the other files.
#[test]
fn an_undo_keeps_an_edited_file_and_restores_the_others() {
    let key = rcgen::generate_simple_self_signed(["p.example".to_owned()]).expect("a certificate");
    let machine = Machine::new(&[(CONTAINERD, "version = 2\n")]);
    let ca = machine.path("ca.pem");
    fs::write(&ca, key.cert.pem()).expect("written");
    let ca = ca.to_str().expect("UTF-8");
    let before = machine.everything();
    let set_up = || {
        machine.ok(
            "containerd",
            &["--address", "https://p.example:5000", "--ca", ca],
        )
    };
    let authority = "etc/containerd/certs.d/_default/pierhead-ca.crt";
    let edit = |path: &str, from: &str, to: &str| {
        let text = machine.read(path);
        assert!(text.contains(from), "{from} in {text}");
        fs::write(machine.path(path), text.replace(from, to)).expect("written");
    };
    let record = "var/lib/pierhead-setup/containerd.json";

    set_up();
    let written = machine.read(CONTAINERD);
    edit(CONTAINERD, "certs.d\"", "certs.d:/mine\"");
    let edited = machine.read(CONTAINERD);
    let output = machine.run("containerd", &["--undo", "--dry-run"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(machine.path(DEFAULT).exists(), "it was only shown");
    let output = machine.run("containerd", &["--undo"]);
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    let shown = machine.path(CONTAINERD);
    assert!(
        output_text.contains(&format!("{} was edited at or next to", shown.display())),
        "{output_text}"
    );
    assert!(
        output_text.contains("the other files are restored"),
        "{output_text}"
    );
    assert_eq!(machine.read(CONTAINERD), edited);
    assert!(!machine.path(DEFAULT).exists() && !machine.path(authority).exists());
    // A second undo changes nothing. After the user's edit of the containerd file is reverted, an
    // undo restores all files.
    let output_text = machine.refuses("containerd", &["--undo"]);
    assert!(output_text.contains("No file was changed"), "{output_text}");
    fs::write(machine.path(CONTAINERD), written).expect("written");
    machine.ok("containerd", &["--undo"]);
    assert!(machine.everything() == before);

    // Undo also keeps the files that the edited file names.
    set_up();
    edit(DEFAULT, "\"pull\", \"resolve\"", "\"pull\"");
    let output = machine.run("containerd", &["--undo"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(machine.read(CONTAINERD), "version = 2\n");
    assert!(machine.path(authority).exists() && machine.path(record).exists());
}

/// Tests a file that another program has rewritten without pierhead's changes: setup records the
/// rewritten file as the original.
#[test]
fn a_rewritten_file_is_the_new_original() {
    let mine = "{\"registry-mirrors\": [\"https://mine\"]}\n";
    for arguments in [&["--undo"][..], &["--address", "http://10.0.0.1:1"]] {
        let machine = Machine::new(&[(DOCKER, "{\"debug\": true}\n")]);
        machine.ok("docker", &[]);
        fs::write(machine.path(DOCKER), mine).expect("written");
        machine.ok("docker", arguments);
        let undone = arguments == ["--undo"];
        assert_eq!(machine.read(DOCKER).contains("10.0.0.1:1"), !undone);
        machine.ok("docker", &["--undo"]);
        assert_eq!(machine.read(DOCKER), mine);
    }
}

/// Tests that an undo works after a crash at any point of the setup, which writes its record before
/// any other file.
#[test]
fn a_killed_setup_can_be_undone() {
    let files = [
        (CONTAINERD, "version = 2\n# mine\n"),
        (
            "etc/containerd/certs.d/docker.io/hosts.toml",
            "[host.\"https://m\"]\n",
        ),
    ];
    let elsewhere = ["--address", "http://10.9.8.7:5000"];
    let one = [
        "--address",
        "http://10.9.8.7:5000",
        "--registry",
        "docker.io",
    ];
    // The first run, a run with another address, and a run that needs fewer files than the previous
    // run.
    for runs in [
        &[&[][..]][..],
        &[&[], &elsewhere],
        &[&elsewhere, &one],
        &[&one, &[]],
    ] {
        let machine = Machine::new(&files);
        let before = machine.everything();
        let (last, earlier) = runs.split_last().expect("a run");
        for arguments in earlier {
            machine.ok("containerd", arguments);
        }
        let found = machine.everything();
        machine.ok("containerd", last);
        // The setup was killed right after it wrote its record, so no other file has changed.
        let record = |path: &Path| path.starts_with(machine.path("var"));
        for (path, (_, bytes)) in machine.everything() {
            if path.is_file() && !record(&path) && !found.contains_key(&path) {
                fs::remove_file(&path).expect("removed");
            } else if path.is_file() && !record(&path) {
                assert!(!bytes.is_empty());
            }
        }
        for (path, (_, bytes)) in &found {
            let is_file = !path.is_dir() && !record(path) && !bytes.is_empty();
            if is_file {
                fs::create_dir_all(path.parent().expect("a parent")).expect("made");
                fs::write(path, bytes).expect("written");
            }
        }
        machine.ok("containerd", &["--undo"]);
        assert_eq!(machine.everything(), before, "{runs:?}");
    }
}

#[test]
fn a_wrong_registry_or_file_is_a_usage_error() {
    let machine = Machine::new(&[]);
    let output = machine.run("podman", &["--registry", "https://ghcr.io"]);
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output_text}");
    assert!(output_text.contains("write \"ghcr.io\""), "{output_text}");
    for client in ["podman", "crio"] {
        let output = machine.run(client, &["--config", "/etc/x.conf"]);
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{output_text}");
    }
}

#[test]
fn an_impossible_setup_is_an_error_with_its_line() {
    let machine = Machine::new(&[
        (DOCKER, "{\n  \"a\": 1,\n}\n"),
        (CONTAINERD, "version = 2\nx = \n"),
    ]);
    assert!(machine.refuses("docker", &[]).contains("daemon.json:3: "));
    assert!(
        machine
            .refuses("containerd", &[])
            .contains("config.toml:2: ")
    );
    assert!(
        machine
            .refuses("docker", &["--registry", "quay.io"])
            .contains("docker.io only")
    );

    let machine = Machine::new(&[(
        "etc/default/docker",
        "DOCKER_OPTS=\"--registry-mirror=https://m\"\n",
    )]);
    let output_text = machine.refuses("docker", &[]);
    assert!(
        output_text.contains("/etc/default/docker") && output_text.contains("remove the flag"),
        "{output_text}"
    );

    let machine = Machine::new(&[(PODMAN, "# mine\n")]);
    assert!(
        machine
            .refuses("podman", &[])
            .contains("move it away first")
    );
}

/// Tests `--hold` with the signal of Kubernetes, SIGTERM, and the signal of Ctrl-C, SIGINT.
#[test]
fn a_signal_undoes_a_held_setup() {
    let files: [(&str, &[(&str, &str)]); 3] = [
        ("docker", &[(DOCKER, "{\r\n\t\"debug\" : true\r\n}")]),
        (
            "containerd",
            &[
                (CONTAINERD, "# mine\nversion = 2"),
                (DEFAULT, "server = 'https://x'"),
            ],
        ),
        ("crio", &[]),
    ];
    for (client, files) in files {
        for signal in [Signal::TERM, Signal::INT] {
            let machine = Machine::new(files);
            if client == "docker" {
                let mode = fs::Permissions::from_mode(0o640);
                fs::set_permissions(machine.path(DOCKER), mode).expect("a new mode");
            }
            let before = machine.everything();
            let held = machine.hold(client, &["--address", "http://192.0.2.1:5000"]);
            held.wait_until_held();
            let during = machine.everything();
            let is_set_up = during
                .values()
                .any(|(_, bytes)| String::from_utf8_lossy(bytes).contains("192.0.2.1:5000"));
            assert!(is_set_up, "{client}: nothing was written");
            held.signal(signal);
            let (status, output_text) = held.ended();
            assert!(status.success(), "{client}: {output_text}");
            assert!(
                output_text.contains("restored the files"),
                "{client}: {output_text}"
            );
            assert_eq!(machine.everything(), before, "{client}");
        }
    }
}

/// Tests that after SIGKILL the next `--hold` or `--undo` restores the original files.
#[test]
fn a_held_setup_is_undone_after_sigkill() {
    let files = [
        (CONTAINERD, "version = 3\n# mine"),
        (DEFAULT, "server = 'https://x'"),
    ];
    let one = ["--address", "http://192.0.2.1:5000"];
    let other = ["--address", "http://192.0.2.2:5000"];
    for end in ["undo", "held again", "wrong"] {
        let machine = Machine::new(&files);
        let before = machine.everything();
        let held = machine.hold("containerd", &one);
        held.wait_until_held();
        held.signal(Signal::KILL);
        let (status, output_text) = held.ended();
        assert!(
            !status.success() && !output_text.contains("restored the files"),
            "{output_text}"
        );
        assert_ne!(machine.everything(), before);
        match end {
            "undo" => drop(machine.ok("containerd", &["--undo"])),
            "held again" => {
                let held = machine.hold("containerd", &other);
                held.wait_until_held();
                assert!(machine.read(DEFAULT).contains("192.0.2.2"));
                assert!(!machine.read(DEFAULT).contains("192.0.2.1"));
                held.signal(Signal::TERM);
                assert!(held.ended().0.success());
            }
            // The new setup fails, so it removes all changes.
            _ => {
                let none = machine.path("none");
                let arguments = ["--address-file", none.to_str().expect("UTF-8")];
                let (status, output_text) = machine.hold("containerd", &arguments).ended();
                assert_eq!(status.code(), Some(66), "{output_text}");
            }
        }
        assert_eq!(machine.everything(), before, "{end}");
    }
}

/// Tests `--address-file`: the first line of the file is the address of pierhead.
#[test]
fn the_address_of_a_file_is_read_at_each_run_and_an_invalid_one_is_an_error() {
    let machine = Machine::new(&[(DEFAULT, "server = 'https://x'")]);
    // The files are like those of a mounted ConfigMap.
    let pairs = tempfile::tempdir().expect("a folder");
    let file = pairs.path().join("node-1");
    let arguments = ["--address-file", file.to_str().expect("UTF-8")];
    let before = machine.everything();
    for (text, code, expected) in [
        (None, 66, "has no \"node-1\""),
        (Some(&b""[..]), 65, "is empty"),
        (Some(b"\nhttp://192.0.2.1:5000\n"), 65, "is empty"),
        (
            Some(b"http://192.0.2.1:5000/path\n"),
            65,
            "write http://HOST:PORT",
        ),
        (Some(b"\xff\xfe\n"), 65, "UTF-8"),
    ] {
        if let Some(text) = text {
            fs::write(&file, text).expect("written");
        }
        let output = machine.run("containerd", &arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{text:?}: {message}");
        assert!(message.contains(expected), "{text:?}: {message}");
        assert!(message.contains("--address-file: "), "{message}");
        assert_eq!(machine.everything(), before, "a refusal changes nothing");
    }
    for address in ["192.0.2.1:5000", "192.0.2.2:5000"] {
        fs::write(&file, format!("  http://{address} \n# the rest\n")).expect("written");
        machine.ok("containerd", &arguments);
        assert!(machine.read(DEFAULT).contains(&format!("http://{address}")));
        assert_eq!(
            machine.ok("containerd", &arguments),
            "",
            "nothing is left to do"
        );
    }
    assert!(!machine.read(DEFAULT).contains("192.0.2.1"));
    machine.ok("containerd", &["--undo"]);
    assert_eq!(machine.everything(), before);
}

#[test]
fn a_host_without_a_port_has_the_default_port_of_pierhead() {
    for (address, written) in [
        ("192.0.2.1", "http://192.0.2.1:5000"),
        ("pierhead.example", "http://pierhead.example:5000"),
        ("192.0.2.1:8080", "http://192.0.2.1:8080"),
        ("https://pierhead.example", "https://pierhead.example"),
    ] {
        let machine = Machine::new(&[(CONTAINERD, "version = 2\n")]);
        machine.ok("containerd", &["--address", address]);
        let hosts = machine.read(DEFAULT);
        assert!(
            hosts.contains(&format!("\"{written}\"")),
            "{address}: {hosts}"
        );
    }
}

#[test]
fn nothing_is_written_without_confirmation() {
    let machine = Machine::new(&[(CONTAINERD, "version = 2\n")]);
    let set_up = &["--address", "http://10.0.0.1:5000"][..];
    for (nth, more) in [set_up, &["--undo"]].into_iter().enumerate() {
        if nth > 0 {
            machine.ok("containerd", set_up);
        }
        let before = machine.everything();
        let mut command = machine.command("containerd", more);
        let output = command
            .stdin(Stdio::null())
            .output()
            .expect("pierhead runs");
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {output_text}");
        assert!(output_text.contains("--yes"), "{output_text}");
        assert_eq!(machine.everything(), before, "{more:?}");
    }
    let shown = machine.ok("containerd", &["--dry-run", "--undo"]);
    assert!(shown.contains("config_path"), "{shown}");
}

#[test]
fn a_setup_without_changes_needs_no_confirmation() {
    let machine = Machine::new(&[(CONTAINERD, "version = 2\n")]);
    let set_up = ["--address", "http://10.0.0.1:5000"];
    let run_without_terminal = |more: &[&str]| {
        let mut command = machine.command("containerd", more);
        let output = command
            .stdin(Stdio::null())
            .output()
            .expect("pierhead runs");
        let output_text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {output_text}");
    };
    run_without_terminal(&["--undo"]);
    machine.ok("containerd", &set_up);
    run_without_terminal(&set_up);
}
