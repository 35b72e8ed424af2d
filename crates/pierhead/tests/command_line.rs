//! Tests of the program `pierhead` without a running daemon: help texts, `completions`, `man`,
//! `config` commands, messages and exit codes of invalid commands.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{CWD, FileType, Mode, mknodat};

fn pierhead(arguments: &[&str]) -> Output {
    // `timeout` ends a command that hangs, so that the test fails.
    let mut command = Command::new("timeout");
    command.args(["60", env!("CARGO_BIN_EXE_pierhead")]);
    // A fixed terminal width and home folder, so that the output is the same on every host.
    command
        .env("COLUMNS", "100")
        .env("HOME", "/home/someone")
        .env_remove("XDG_DATA_HOME");
    command.args(arguments).output().expect("pierhead runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    let output = pierhead(arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout).to_owned()
}

#[track_caller]
fn fails(arguments: &[&str], code: i32) -> String {
    let output = pierhead(arguments);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stderr).to_owned()
}

fn file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("the file is written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn the_help_of_each_command_has_its_flags_and_output_lines() {
    let all: [(&[&str], &[&str]); 12] = [
        (
            &[],
            &[
                "serve",
                "config",
                "cache",
                "completions",
                "man",
                "Examples:",
                "docker pull 127.0.0.1:5000/",
                "Exit codes: 0 done, 1 failed, 2",
            ],
        ),
        (
            &["serve"],
            &[
                "--listen",
                "--data",
                "--cache-size",
                "--upstream <NAME=URL>",
                "--config",
                "--admin",
                "--log",
                "--ready-file",
                "SIGHUP",
                "Examples:",
            ],
        ),
        (
            &["setup"],
            &[
                "docker",
                "containerd",
                "podman",
                "crio",
                "--undo",
                "--dry-run",
                "--address",
                "--root",
                "--restart",
                "/var/lib/pierhead-setup",
                "Exit codes:",
            ],
        ),
        (
            &["doctor"],
            &[
                "--json",
                "--offline",
                "--config",
                "--registry",
                "Exit codes:",
            ],
        ),
        (&["config"], &["check", "show"]),
        (&["config", "show"], &["--default", "masked"]),
        (
            &["cache"],
            &[
                "ls",
                "stat",
                "pin",
                "unpin",
                "prune",
                "verify",
                "warm",
                "--json",
                "--admin",
                "Examples:",
            ],
        ),
        (&["cache", "warm"], &["--platform", "--pin", "<IMAGE>..."]),
        (&["cache", "prune"], &["--to", "--all"]),
        (&["cache", "verify"], &["Exit code 1"]),
        // Parts of the help that must explain each line of the command's output.
        (
            &["cache", "stat"],
            &[
                "pierhead ",
                "listens on ",
                "data ",
                "used ",
                "blobs ",
                "downloads ",
                "pinned ",
                "bundles ",
                "memory ",
                "requests ",
                "eviction ",
                "admission ",
                "written ",
            ],
        ),
        (
            &["cache", "tier", "stat"],
            &[
                "class ",
                "failed ",
                "used ",
                "hot ranges ",
                "medium ",
                "dirty ",
                "since start ",
                "opened ",
                "corrupt ",
            ],
        ),
    ];
    for (command, parts) in all {
        let help = succeeds(&[command, &["--help"]].concat());
        for part in parts {
            assert!(
                help.contains(part),
                "{command:?}: {part:?} is not in\n{help}"
            );
        }
        let wide = help.lines().find(|line| line.chars().count() > 105);
        assert_eq!(wide, None, "{command:?}");
    }
}

#[test]
fn the_version_has_target_and_license() {
    assert_eq!(
        succeeds(&["-V"]),
        format!("pierhead {}\n", env!("CARGO_PKG_VERSION"))
    );
    let long = succeeds(&["--version"]);
    assert!(long.contains("license: Apache-2.0"), "{long}");
    assert!(long.contains("target: "), "{long}");
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeds(&["completions", shell]);
        assert!(script.contains("cache-size"), "{shell}");
    }
    assert!(succeeds(&["man"]).contains(".TH pierhead 1"));
    let page = succeeds(&["man", "cache", "warm"]);
    assert!(
        page.contains("warm") && page.contains("\\-\\-platform"),
        "{page}"
    );
    for command in ["setup", "doctor"] {
        assert!(succeeds(&["man", command]).contains(command));
        assert!(
            succeeds(&["completions", "bash"]).contains(&format!("pierhead__subcmd__{command}"))
        );
    }
    assert!(fails(&["man", "cache", "nothing"], 2).contains("cache nothing"));
    // The VERSION section of a manual page contains only the version.
    for arguments in [&["man"][..], &["man", "cache", "warm"]] {
        let page = succeeds(arguments);
        let section = page.split(".SH VERSION\n").nth(1).unwrap_or_default();
        let section = section.lines().take_while(|line| !line.starts_with(".SH"));
        let section: Vec<_> = section.collect();
        assert_eq!(section, [concat!("v", env!("CARGO_PKG_VERSION"))], "{page}");
    }
}

#[test]
fn a_quiet_command_prints_only_results_and_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = file(folder.path(), "good.toml", "cache.size = \"10GiB\"\n");
    for arguments in [
        &["--quiet", "config", "check", &good][..],
        &["config", "check", &good, "-q"],
    ] {
        assert_eq!(succeeds(arguments), "", "{arguments:?}");
    }
    let bad = file(folder.path(), "bad.toml", "nothing = 1\n");
    assert!(fails(&["config", "check", "--quiet", &bad], 2).contains("nothing"));
    // With `--quiet`, results are still printed.
    assert!(succeeds(&["config", "show", "--default", "--quiet"]).contains("[cache]"));
    let root = folder.path().join("root");
    let root = root.to_str().expect("UTF-8");
    std::fs::create_dir(root).expect("a folder");
    let setup = ["setup", "podman", "--yes", "--quiet", "--root", root];
    let output = pierhead(&setup);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_usage_error_has_exit_code_2() {
    for arguments in [
        &["serv"][..],
        &["serve", "--listen", "5000"],
        &["serve", "--cache-size", "much"],
        // The error reports the invalid value, although the file is missing, too.
        &["serve", "--cache-size", "0", "--config", "/nowhere"],
        &["serve", "--cache-size", "50", "--config", "/nowhere"],
        &["serve", "--upstream", "docker.io"],
        &["serve", "--upstream", "docker.io=ftp://x"],
        &["serve", "--log", "loud"],
        &["cache", "prune"],
        &["cache", "prune", "--all", "--to", "1GiB"],
        &["cache", "prune", "--to", "10"],
        &["cache", "tier", "set-limit", "10"],
        &["cache", "warm"],
        &["cache", "warm", "UPPER/Case"],
        &["cache", "warm", "a", "--platform", "linux"],
        &["cache", "stat", "--admin", "nowhere"],
        &["config", "check"],
        &["setup"],
        &["setup", "rkt"],
        &["setup", "docker", "--address", "ftp://x"],
        &["setup", "docker", "--undo", "--address", "http://a:1"],
        &["doctor", "--offline", "--registry", "quay.io"],
        &["completions", "cmd"],
    ] {
        let message = fails(arguments, 2);
        assert!(message.starts_with("error: "), "{arguments:?}: {message}");
    }
    assert!(fails(&["serve", "--listen", "5000"], 2).contains("0.0.0.0:5000"));
    let refused = fails(&["cache", "prune", "--to", "10"], 2);
    assert!(refused.contains("10GiB or 10B"), "{refused}");
}

#[test]
fn config_check_reports_file_line_and_fix() {
    let folder = tempfile::tempdir().expect("a folder");
    let bad = file(
        folder.path(),
        "bad.toml",
        "# mine\n[cache]\nsiez = \"10GiB\"\n[log]\nformat = \"xml\"\n",
    );
    let message = fails(&["config", "check", &bad], 2);
    let expected = format!(
        "{bad}:3: unknown key \"cache.siez\": did you mean \"cache.size\"?\n\
         {bad}:5: log.format: \"xml\" is no log format: write \"text\", \"json\"\n"
    );
    assert_eq!(message, expected);
    // `pierhead serve` prints the same error, before it creates the data folder.
    let data = folder.path().join("data");
    let data = data.to_str().expect("UTF-8");
    assert_eq!(
        fails(&["serve", "--config", &bad, "--data", data], 2),
        expected
    );
    assert!(!Path::new(data).exists());

    for kind in ["file", "pmem"] {
        let text = format!("\n[tier]\nkind = \"{kind}\"\n");
        let tier = file(folder.path(), "tier.toml", &text);
        let output_text = fails(&["config", "check", &tier], 2);
        assert!(
            output_text.starts_with(&format!("{tier}:3: tier.kind = \"{kind}\" needs")),
            "{output_text}"
        );
        assert_eq!(
            fails(&["serve", "--config", &tier, "--data", data], 2),
            output_text
        );
    }

    let good = file(folder.path(), "good.toml", "cache.size = \"10GiB\"\n");
    assert_eq!(
        succeeds(&["config", "check", &good]),
        format!("{good}: valid\n")
    );
    let missing = folder.path().join("none.toml");
    let message = fails(&["config", "check", missing.to_str().expect("UTF-8")], 66);
    assert!(
        message.contains("none.toml: cannot read the configuration: No such file"),
        "{message}"
    );
}

#[test]
fn config_check_reads_the_named_files() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), "empty", "\n");
    file(folder.path(), "no.pem", "nothing\n");
    let bad = file(
        folder.path(),
        "bad.toml",
        "listen = \"127.0.0.1:1\"\n[tls]\ncert = \"no.pem\"\nkey = \"gone.pem\"\nclient_ca = \"no.pem\"\n\
         [upstreams.\"a.b\"]\nusername = \"u\"\npassword_file = \"empty\"\n[upstreams.\"c.d\"]\nca = \"no.pem\"\n",
    );
    let message = fails(&["config", "check", &bad], 65);
    let lines: Vec<_> = message.lines().collect();
    for (line, part) in [
        (3, "no.pem"),
        (4, "gone.pem: No such file"),
        (5, "no.pem"),
        (6, "empty is empty"),
        (9, "no.pem"),
    ] {
        let start = format!("{bad}:{line}: ");
        assert!(
            lines
                .iter()
                .any(|found| found.starts_with(&start) && found.contains(part)),
            "{start}{part} in {message}"
        );
    }
    assert_eq!(lines.len(), 5, "{message}");
}

/// Tests that pierhead reads no configuration from a named pipe: without a writer, the read would
/// hang.
#[test]
fn a_pipe_in_place_of_a_named_file_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let (kind, mode) = (FileType::Fifo, Mode::from(0o600));
    mknodat(CWD, &pipe, kind, mode, 0).expect("a pipe");
    let name = pipe.to_str().expect("UTF-8");
    let message = fails(&["config", "check", name], 66);
    assert!(message.contains("a pipe, not a regular file"), "{message}");
    let message = fails(&["serve", "--config", name], 66);
    assert!(message.contains("a pipe, not a regular file"), "{message}");
    let message = fails(&["config", "check", "/"], 66);
    assert!(
        message.contains("a folder, not a regular file"),
        "{message}"
    );
    // The flag also accepts a URL, as `--admin` of `pierhead cache` does.
    let admin = "http://127.0.0.1:1/";
    let output = pierhead(&["doctor", "--offline", "--admin", admin, "--config", name]);
    let output_text = text(&output.stdout);
    assert!(
        output_text.contains("a pipe, not a regular file"),
        "{output_text}"
    );
    // If keys and flags are invalid, the exit code is the code of the configuration file.
    let keys = [
        (66, "docker_config = \"pipe\"\n"),
        (66, "auth.mode = \"htpasswd\"\nauth.htpasswd = \"pipe\"\n"),
        (2, "tls.cert = \"pipe\"\n"),
        (2, "tls.key = \"pipe\"\n"),
        (66, "tls.cert = \"pipe\"\ntls.key = \"pipe\"\n"),
        (2, "tls.client_ca = \"pipe\"\n"),
        (66, "[upstreams.\"a.b\"]\nca = \"pipe\"\n"),
        (
            66,
            "[upstreams.\"a.b\"]\nusername = \"u\"\npassword_file = \"pipe\"\n",
        ),
        (
            66,
            "[upstreams.\"a.b\"]\nusername = \"<token>\"\npassword_file = \"pipe\"\n",
        ),
    ];
    for (code, key) in keys {
        let key = format!("listen = \"127.0.0.1:1\"\n{key}");
        let bad = file(folder.path(), "bad.toml", &key);
        let message = fails(&["config", "check", &bad], code);
        assert!(
            message.contains("a pipe, not a regular file"),
            "{key}: {message}"
        );
    }
}

#[test]
fn config_check_prints_the_warnings_of_serve() {
    let folder = tempfile::tempdir().expect("a folder");
    let hash = format!("ann:$2y$05${}\n", ".".repeat(53));
    let users = file(folder.path(), "users", &hash);
    let everybody = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&users, everybody).expect("a new mode");
    let text_of = "listen = \"0.0.0.0:1\"\nauth.mode = \"htpasswd\"\nauth.htpasswd = \"users\"\n";
    let open = file(folder.path(), "open.toml", text_of);
    let output = pierhead(&["config", "check", &open]);
    let output_text = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{output_text}");
    for part in ["chmod 600", "set tls.cert and tls.key"] {
        assert!(
            output_text.contains(part),
            "{part:?} is missing: {output_text}"
        );
    }
}

#[test]
fn config_check_warns_of_a_readable_key_and_of_a_ca_certificate() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::new(["a.b".to_owned()]).expect("a name");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = parameters.self_signed(&key).expect("made");
    file(folder.path(), "tls.crt", &certificate.pem());
    let private = file(folder.path(), "tls.key", &key.serialize_pem());
    let text_of = "listen = \"127.0.0.1:1\"\ntls.cert = \"tls.crt\"\ntls.key = \"tls.key\"\n";
    let config = file(folder.path(), "p.toml", text_of);
    for (mode, warned) in [(0o644, true), (0o600, false)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&private, mode).expect("a new mode");
        let output = pierhead(&["config", "check", &config]);
        let output_text = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{output_text}");
        assert_eq!(output_text.contains("chmod 600"), warned, "{output_text}");
        assert!(output_text.contains("CA:FALSE"), "{output_text}");
    }
}

#[test]
fn a_prune_without_a_target_is_an_error() {
    let output = pierhead(&["cache", "prune"]);
    assert_eq!(output.status.code(), Some(2));
    let output_text = text(&output.stderr);
    assert!(
        output_text.contains("prune <--to <SIZE>|--all>"),
        "{output_text}"
    );
}

/// Tests that pierhead reads a configuration from process substitution (`<(…)`) or `/dev/stdin`,
/// which are pipes with a writer.
#[test]
fn a_configuration_can_come_from_a_pipe_with_a_writer() {
    let check = "echo 'listen = \"127.0.0.1:1\"' | \"$0\" config show /dev/stdin";
    let output = Command::new("timeout")
        .args(["60", "sh", "-c", check, env!("CARGO_BIN_EXE_pierhead")])
        .output()
        .expect("pierhead runs");
    let output_text = text(&output.stdout);
    assert!(
        output_text.contains("listen = [\"127.0.0.1:1\"]"),
        "{output_text}"
    );
}

#[test]
fn config_show_masks_secrets_and_its_output_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), "password", "from-file-hunter2\n");
    let config = file(
        folder.path(),
        "pierhead.toml",
        "listen = [\"127.0.0.1:5000\"]\ncache.size = \"25%\"\n[upstreams.\"ghcr.io\"]\nusername = \"<token>\"\npassword_file = \"password\"\n\
         [upstreams.\"quay.io\"]\nusername = \"me\"\npassword_file = \"password\"\n",
    );
    let shown = succeeds(&["config", "show", &config]);
    assert!(!shown.contains("hunter2"), "{shown}");
    for line in [
        "listen = [\"127.0.0.1:5000\"]",
        "size = \"25%\"",
        "[upstreams.\"ghcr.io\"]",
        "username = \"<token>\"",
    ] {
        assert!(
            shown.lines().any(|found| found == line),
            "{line} in {shown}"
        );
    }
    let copy = file(folder.path(), "copy.toml", &shown);
    assert_eq!(succeeds(&["config", "show", &copy]), shown);

    let defaults = succeeds(&["config", "show", "--default"]);
    let copy = file(folder.path(), "default.toml", &defaults);
    succeeds(&["config", "check", &copy]);
}

#[test]
fn an_open_proxy_with_credentials_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path(), "password", "hunter2\n");
    let config = file(
        folder.path(),
        "p.toml",
        "[upstreams.\"ghcr.io\"]\nusername = \"me\"\npassword_file = \"password\"\n",
    );
    let data = folder.path().join("data");
    let data = data.to_str().expect("UTF-8");
    let message = fails(
        &[
            "serve",
            "--config",
            &config,
            "--data",
            data,
            "--listen",
            "0.0.0.0:0",
        ],
        2,
    );
    assert!(
        message.contains("every client that reaches 0.0.0.0:0")
            && message.contains("allow_open_proxy_with_credentials = true"),
        "{message}"
    );
    assert!(!message.contains("hunter2"), "{message}");
    assert!(!Path::new(data).exists());
}

#[test]
fn the_error_without_a_daemon_has_a_fix() {
    // Finds a free port, on which no process listens.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|it| it.local_addr())
        .expect("a port")
        .port();
    let message = fails(
        &[
            "cache",
            "stat",
            "--admin",
            &format!("http://127.0.0.1:{port}"),
        ],
        1,
    );
    assert!(
        message.contains("start pierhead with") && message.contains("--admin"),
        "{message}"
    );
}

#[test]
fn each_image_is_reported_without_a_daemon() {
    // A free port, on which no process listens.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|it| it.local_addr())
        .expect("a port")
        .port();
    let admin = format!("http://127.0.0.1:{port}");
    let images = ["a.io/b:1", "a.io/b:2", "a.io/b:3"];
    for command in ["rm", "pin", "unpin"] {
        let arguments = [&["cache", command][..], &images, &["--admin", &admin]].concat();
        let message = fails(&arguments, 1);
        let lines: Vec<_> = message.lines().collect();
        assert_eq!(lines.len(), images.len(), "{command}: {message}");
        for (line, image) in lines.iter().zip(images) {
            let start = format!("pierhead: {image}: nothing responds at {admin} (");
            assert!(line.starts_with(&start), "{command}: {line}");
        }
    }
}

#[test]
fn a_usage_error_names_all_missing_arguments() {
    for (arguments, missing) in [
        (
            &["inspect", "redis:7"][..],
            &["--via <URL>", "--from <DIR>"][..],
        ),
        (&["inspect"], &["<IMAGE>", "--via <URL>", "--from <DIR>"]),
        (&["diff", "a:1"], &["<NEW>", "--via <URL>", "--from <DIR>"]),
        (
            &["diff"],
            &["<OLD>", "<NEW>", "--via <URL>", "--from <DIR>"],
        ),
        (&["pull"], &["<IMAGE>", "--via <URL>", "--into <DIR>"]),
        (&["trace"], &["--image <IMAGE>", "--via <URL>"]),
    ] {
        let message = fails(arguments, 2);
        let required = message.split("Usage:").next().unwrap_or_default();
        for name in missing {
            assert!(required.contains(name), "{arguments:?}: {name}: {message}");
        }
    }
    // `--via` and `--from` together are valid usage.
    let message = fails(
        &[
            "inspect",
            "a:1",
            "--via",
            "http://a:1",
            "--from",
            "/nowhere",
        ],
        2,
    );
    assert!(message.contains("/nowhere is not a store"), "{message}");
}

#[test]
fn an_image_that_is_not_in_the_store_has_exit_code_66() {
    let folder = tempfile::tempdir().expect("a folder");
    pierhead_worker::store::Store::open(folder.path(), &[]).expect("a store");
    let store = folder.path().to_str().expect("UTF-8");
    let digest = format!("docker.io/library/redis@sha256:{}", "0".repeat(64));
    for image in ["docker.io/library/redis:7", &digest] {
        let message = fails(&["inspect", "--from", store, image], 66);
        assert!(
            message.contains("was not pulled into this store"),
            "{message}"
        );
    }
}
