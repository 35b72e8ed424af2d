//! Tests of setup on machines whose clients already have flags, drop-ins, mirrors and links.

mod machine;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use machine::{LOOPBACK_ADDRESS, Machine, REMOTE_ADDRESS};
use pierhead_client_setup::{Client, ConfiguredMirrors, Error, Options, Setup};

const PLAIN_HTTP_ADDRESS: &str = "http://10.0.0.1:5000";

/// Returns the notes of a setup that is only planned, and not applied.
fn notes(machine: &Machine, client: Client, registries: &[&str]) -> Vec<String> {
    let address = LOOPBACK_ADDRESS.parse().expect("an address");
    let registries: Vec<_> = registries.iter().map(|name| (*name).to_owned()).collect();
    let options = Options {
        client,
        address: &address,
        ca: None,
        registries: &registries,
        config: None,
    };
    let setup = Setup::plan(&machine.root, &options).expect("a plan");
    setup.notes().to_vec()
}

#[test]
fn a_flag_of_dockerd_conflicts_only_with_the_key_that_setup_needs() {
    let defaults = "etc/default/docker";
    let mirror = Machine::new(&[(
        defaults,
        "DOCKER_OPTS=\"--registry-mirror https://m.lab\"\n",
    )]);
    for address in [LOOPBACK_ADDRESS, PLAIN_HTTP_ADDRESS, REMOTE_ADDRESS] {
        let error = mirror.set_up(Client::Docker, address).expect_err("refused");
        let Error::FlagConflict { flag, key, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!((*flag, *key), ("--registry-mirror", "registry-mirrors"));
        assert!(error.to_string().contains("/etc/default/docker"), "{error}");
    }
    let insecure = Machine::new(&[(defaults, "DOCKER_OPTS='--insecure-registry=10.0.0.9'\n")]);
    let error = insecure
        .set_up(Client::Docker, PLAIN_HTTP_ADDRESS)
        .expect_err("refused");
    assert!(error.to_string().contains("--insecure-registry"), "{error}");
    // A loopback address, or an address with TLS, needs no entry in `insecure-registries`.
    for address in [LOOPBACK_ADDRESS, REMOTE_ADDRESS] {
        insecure.set_up(Client::Docker, address).expect("set up");
    }
    insecure.undo(Client::Docker).expect("undone");
}

#[test]
fn the_file_in_the_flags_of_dockerd_is_changed() {
    let unit = "[Service]\nExecStart=/usr/bin/dockerd --config-file /srv/docker.json\n";
    let machine = Machine::new(&[
        ("usr/lib/systemd/system/docker.service", unit),
        ("srv/docker.json", "{}\n"),
    ]);
    machine
        .set_up(Client::Docker, LOOPBACK_ADDRESS)
        .expect("set up");
    let text = machine.read("srv/docker.json").expect("a file");
    assert!(text.contains(LOOPBACK_ADDRESS), "{text}");
    assert_eq!(machine.read("etc/docker/daemon.json"), None);
    assert_eq!(machine.mirrors(Client::Docker), [LOOPBACK_ADDRESS]);
    machine.undo(Client::Docker).expect("undone");
    assert_eq!(machine.read("srv/docker.json").as_deref(), Some("{}\n"));
}

#[test]
fn a_link_and_a_mode_survive_setup_and_undo() {
    let machine = Machine::new(&[("srv/daemon.json", "{}\n")]);
    let (file, link) = (
        machine.path("srv/daemon.json"),
        machine.path("etc/docker/daemon.json"),
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("set");
    fs::create_dir_all(machine.path("etc/docker")).expect("created");
    symlink("../../srv/daemon.json", &link).expect("a link");
    machine
        .set_up(Client::Docker, LOOPBACK_ADDRESS)
        .expect("set up");
    let check = |has_mirror: bool| {
        assert!(link.is_symlink());
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        let text = fs::read_to_string(&file).expect("a text");
        assert_eq!(text.contains(LOOPBACK_ADDRESS), has_mirror, "{text}");
    };
    check(true);
    machine.undo(Client::Docker).expect("undone");
    check(false);
}

#[test]
fn the_last_import_of_containerd_with_a_folder_wins() {
    let section = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n";
    let with = |folder: &str| format!("{section}  config_path = \"{folder}:/unused\"\n");
    let (first, second) = (with("/srv/first"), with("/srv/second"));
    let machine = Machine::new(&[
        (
            "etc/containerd/config.toml",
            "version = 2\nimports = [\"/etc/containerd/conf.d/x-*.toml\"]\n",
        ),
        ("etc/containerd/conf.d/x-1.toml", &first),
        ("etc/containerd/conf.d/x-2.toml", &second),
        ("etc/containerd/conf.d/y-3.toml", &with("/srv/other")),
    ]);
    machine
        .set_up(Client::Containerd, LOOPBACK_ADDRESS)
        .expect("set up");
    assert!(machine.read("srv/second/_default/hosts.toml").is_some());
    for unused in ["srv/first", "srv/other", "etc/containerd/certs.d"] {
        assert!(!machine.path(unused).exists(), "{unused}");
    }
    machine.undo(Client::Containerd).expect("undone");
    assert!(!machine.path("srv").exists());
}

#[test]
fn a_plan_notes_files_that_keep_a_registry_from_pierhead() {
    let hosts = "[host.\"https://m.lab\"]\n";
    let machine = Machine::new(&[
        ("etc/containerd/certs.d/quay.io/hosts.toml", hosts),
        (
            "etc/containerd/config.toml",
            "disabled_plugins = [\"cri\"]\n",
        ),
        (
            "etc/containers/registries.conf.d/99-lab.conf",
            "[[registry]]\nlocation = \"quay.io\"\n",
        ),
    ]);
    let all = notes(&machine, Client::Containerd, &[]);
    let has = |text: &str| all.iter().any(|note| note.contains(text));
    assert!(
        has("pulls from quay.io do not go through pierhead"),
        "{all:?}"
    );
    assert!(has("disables the CRI plugin"), "{all:?}");
    assert!(has("--hosts-dir /etc/containerd/certs.d"), "{all:?}");
    // A setup for the registry quay.io adds pierhead to the file of this registry.
    let one = notes(&machine, Client::Containerd, &["quay.io"]);
    assert!(!one.iter().any(|note| note.contains("quay.io")), "{one:?}");
    let podman = notes(&machine, Client::Podman, &[]);
    assert!(
        podman
            .iter()
            .any(|note| note.contains("99-lab.conf") && note.contains("quay.io")),
        "{podman:?}"
    );
    let podman = notes(&machine, Client::Podman, &["ghcr.io"]);
    assert_eq!(podman, ["CRI-O reads this file, too"]);
}

#[test]
fn the_mirrors_of_other_files_follow_pierhead() {
    let theirs =
        "[[registry]]\nlocation = \"quay.io\"\n[[registry.mirror]]\nlocation = \"m.lab/q\"\n";
    let machine = Machine::new(&[("etc/containers/registries.conf.d/10-lab.conf", theirs)]);
    let read = || ConfiguredMirrors::read(&machine.root, Client::Crio, None).expect("read");
    assert_eq!(read().mirrors, ["m.lab/q"]);
    assert_eq!(read().scope, "quay.io");
    machine
        .set_up_for(Client::Crio, LOOPBACK_ADDRESS, &["quay.io", "ghcr.io"])
        .expect("set up");
    let found = read();
    let expected = [
        "127.0.0.1:5000/ghcr.io",
        "127.0.0.1:5000/quay.io",
        "m.lab/q",
    ];
    assert_eq!(found.mirrors, expected);
    assert_eq!(found.scope, "ghcr.io, quay.io");
    machine.undo(Client::Crio).expect("undone");
    assert_eq!(read().mirrors, ["m.lab/q"]);
}
