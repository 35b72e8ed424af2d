//! Tests of setup and undo of each client, on a folder that stands for the root of a machine.

mod machine;

use std::path::Path;

use machine::{LOOPBACK_ADDRESS, Machine, REMOTE_ADDRESS};
use pierhead_client_setup::{
    Client, ConfigRoot, ConfiguredMirrors, Error, Fault, Options, Setup, SetupLock, Undo,
};

#[test]
fn an_undo_on_a_machine_without_files_leaves_nothing() {
    for client in Client::ALL {
        for address in [LOOPBACK_ADDRESS, REMOTE_ADDRESS] {
            let machine = Machine::new(&[("etc/hostname", "a\n")]);
            let before = machine.everything();
            assert!(machine.set_up(client, address).expect("set up") > 0);
            assert!(!machine.mirrors(client).is_empty(), "{client}");
            assert_eq!(
                machine.set_up(client, address).expect("again"),
                0,
                "{client}"
            );
            machine.undo(client).expect("undone");
            assert_eq!(machine.everything(), before, "{client}");
        }
    }
}

#[test]
fn an_undo_restores_existing_files_byte_for_byte() {
    let docker = "{\r\n  \"debug\": true,\r\n  \"registry-mirrors\": [\"https://m.lab\"]\r\n}";
    let containerd = "version = 3\n# mine\n[grpc]\n  address = '/run/c.sock'";
    let hosts = "server = \"https://a\"\n[host.\"https://b\"]\n  capabilities = [\"pull\"]\n";
    let podman = "unqualified-search-registries = [\"docker.io\"]\n";
    let files = [
        (Client::Docker, "etc/docker/daemon.json", docker),
        (Client::Containerd, "etc/containerd/config.toml", containerd),
        (
            Client::Containerd,
            "etc/containerd/certs.d/_default/hosts.toml",
            hosts,
        ),
        (Client::Podman, "etc/containers/registries.conf", podman),
    ];
    let machine = Machine::new(&files.map(|(_, path, text)| (path, text)));
    let before = machine.everything();
    for client in [Client::Docker, Client::Containerd, Client::Podman] {
        machine.set_up(client, LOOPBACK_ADDRESS).expect("set up");
        // The address of the second run replaces the address of the first run.
        machine
            .set_up(client, "http://10.0.0.1:5000")
            .expect("again");
        let mirrors = machine.mirrors(client);
        assert!(
            !mirrors.iter().any(|it| it.contains("127.0.0.1")),
            "{mirrors:?}"
        );
        machine.undo(client).expect("undone");
    }
    for (client, path, text) in files {
        assert_eq!(machine.read(path).as_deref(), Some(text), "{client}");
    }
    assert_eq!(machine.everything(), before);
}

#[test]
fn configured_mirrors_are_read_in_their_order() {
    let machine = Machine::new(&[(
        "etc/docker/daemon.json",
        "{\"registry-mirrors\": [\"https://m.lab\"]}",
    )]);
    assert_eq!(machine.mirrors(Client::Docker), ["https://m.lab"]);
    machine
        .set_up(Client::Docker, LOOPBACK_ADDRESS)
        .expect("set up");
    assert_eq!(
        machine.mirrors(Client::Docker),
        [LOOPBACK_ADDRESS, "https://m.lab"]
    );

    let machine = Machine::new(&[]);
    let found = ConfiguredMirrors::read(&machine.root, Client::Containerd, None);
    let found = found.expect("it is read");
    assert!(found.problem.is_some_and(|it| it.contains("config_path")));
    machine
        .set_up(Client::Containerd, LOOPBACK_ADDRESS)
        .expect("set up");
    let found = ConfiguredMirrors::read(&machine.root, Client::Containerd, None);
    let found = found.expect("it is read");
    assert_eq!(
        (found.scope.as_str(), found.problem),
        ("every registry", None)
    );

    let machine = Machine::new(&[]);
    let registries = ["quay.io", "ghcr.io"];
    machine
        .set_up_for(Client::Crio, REMOTE_ADDRESS, &registries)
        .expect("set up");
    let mirrors = machine.mirrors(Client::Podman);
    assert_eq!(
        mirrors,
        ["p.example:5000/ghcr.io", "p.example:5000/quay.io"]
    );
}

#[test]
fn the_ca_certificate_is_written_to_the_path_of_each_client() {
    for (client, path) in [
        (Client::Docker, "etc/docker/certs.d/p.example:5000/ca.crt"),
        (
            Client::Containerd,
            "etc/containerd/certs.d/_default/pierhead-ca.crt",
        ),
        (
            Client::Podman,
            "etc/containers/certs.d/p.example:5000/ca.crt",
        ),
    ] {
        let machine = Machine::new(&[]);
        machine.set_up(client, REMOTE_ADDRESS).expect("set up");
        assert_eq!(machine.read(path).as_deref(), Some("PEM\n"), "{client}");
    }
}

#[test]
fn an_undo_keeps_later_changes_by_others() {
    let file = "etc/docker/daemon.json";
    let machine = Machine::new(&[(file, "{\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3\n}\n")]);
    machine
        .set_up(Client::Docker, LOOPBACK_ADDRESS)
        .expect("set up");
    let changed = machine
        .read(file)
        .expect("a file")
        .replace("\"a\": 1", "\"a\": 9");
    machine.write(file, &changed);
    machine.undo(Client::Docker).expect("undone");
    let text = machine.read(file).expect("a file");
    assert_eq!(text, "{\n  \"a\": 9,\n  \"b\": 2,\n  \"c\": 3\n}\n");
}

#[test]
fn an_edited_line_of_pierhead_is_reported_and_unchanged() {
    let file = "etc/docker/daemon.json";
    let machine = Machine::new(&[(file, "{\n  \"a\": 1\n}\n")]);
    machine
        .set_up(Client::Docker, LOOPBACK_ADDRESS)
        .expect("set up");
    let edited = machine
        .read(file)
        .expect("a file")
        .replace(LOOPBACK_ADDRESS, "http://127.0.0.1:5000/x");
    machine.write(file, &edited);
    for error in [
        machine.undo(Client::Docker).expect_err("edited"),
        machine
            .set_up(Client::Docker, REMOTE_ADDRESS)
            .expect_err("edited"),
    ] {
        assert_eq!(error.fault(), Fault::ClientFiles);
        let Error::Edited { files, record, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(files[0].0, machine.path(file));
        assert!(
            files[0].1.contains("http://127.0.0.1:5000/x"),
            "{}",
            files[0].1
        );
        assert!(record.is_file(), "the original text is in the record");
    }
    assert_eq!(machine.read(file), Some(edited));
}

#[test]
fn a_plan_writes_nothing() {
    let machine = Machine::new(&[("etc/docker/daemon.json", "{}\n")]);
    let before = machine.everything();
    let address = LOOPBACK_ADDRESS.parse().expect("an address");
    let options = Options {
        client: Client::Docker,
        address: &address,
        ca: None,
        registries: &[],
        config: None,
    };
    let setup = Setup::plan(&machine.root, &options).expect("a plan");
    let [change] = setup.changes() else {
        panic!("{:?}", setup.changes());
    };
    assert_eq!(change.path, Path::new("/etc/docker/daemon.json"));
    assert!(
        change.diff().contains("+  \"registry-mirrors\""),
        "{}",
        change.diff()
    );
    assert!(setup.notes().iter().any(|note| note.contains("Docker Hub")));
    assert!(
        Undo::plan(&machine.root, Client::Docker)
            .expect("read")
            .is_none()
    );
    assert_eq!(machine.everything(), before);
}

#[test]
fn unsupported_options_and_files_are_refused_without_a_change() {
    let unit = "[Service]\nExecStart=/usr/bin/dockerd --registry-mirror=https://m.lab\n";
    let unknown = "[[registry]]\nprefix = \"a.b\"\nlocation = \"a.b\"\n";
    let drop_in = "etc/containers/registries.conf.d/50-pierhead.conf";
    for (client, files, registries, fault) in [
        (Client::Docker, vec![], vec!["quay.io"], Fault::Caller),
        (
            Client::Docker,
            vec![("etc/systemd/system/docker.service", unit)],
            vec![],
            Fault::ClientFiles,
        ),
        (
            Client::Docker,
            vec![("etc/docker/daemon.json", "{\n")],
            vec![],
            Fault::ClientFiles,
        ),
        (
            Client::Containerd,
            vec![("etc/containerd/config.toml", "version = 9\n")],
            vec![],
            Fault::ClientFiles,
        ),
        (
            Client::Containerd,
            vec![("etc/containerd/certs.d/_default/hosts.toml", "[host\n")],
            vec![],
            Fault::ClientFiles,
        ),
        (
            Client::Podman,
            vec![(drop_in, unknown)],
            vec![],
            Fault::ClientFiles,
        ),
        (
            Client::Crio,
            vec![("etc/containers/registries.conf", "[registries.search]\n")],
            vec![],
            Fault::ClientFiles,
        ),
    ] {
        let machine = Machine::new(&files);
        let before = machine.everything();
        let error = machine
            .set_up_for(client, LOOPBACK_ADDRESS, &registries)
            .expect_err("refused");
        assert_eq!(error.fault(), fault, "{error}");
        assert_eq!(machine.everything(), before, "a refusal changes nothing");
    }
}

#[test]
fn the_folder_in_the_last_file_of_containerd_is_used() {
    let main = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    let drop_in = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".registry]\n  config_path = \"/srv/certs\"\n";
    let machine = Machine::new(&[
        ("etc/containerd/config.toml", main),
        ("etc/containerd/conf.d/a.toml", drop_in),
    ]);
    machine
        .set_up(Client::Containerd, LOOPBACK_ADDRESS)
        .expect("set up");
    assert!(machine.read("srv/certs/_default/hosts.toml").is_some());
    assert_eq!(
        machine.read("etc/containerd/config.toml").as_deref(),
        Some(main)
    );
    // If no file names a folder of `hosts.toml` files, the drop-in file of pierhead names such a
    // folder.
    let machine = Machine::new(&[("etc/containerd/config.toml", main)]);
    machine
        .set_up(Client::Containerd, LOOPBACK_ADDRESS)
        .expect("set up");
    let ours = machine.read("etc/containerd/conf.d/50-pierhead.toml");
    assert!(ours.is_some_and(|text| text.contains("config_path = \"/etc/containerd/certs.d\"")));
    machine.undo(Client::Containerd).expect("undone");
    assert_eq!(machine.read("etc/containerd/conf.d/50-pierhead.toml"), None);
}

#[test]
fn a_single_registry_of_containerd_is_set_up() {
    let machine = Machine::new(&[]);
    machine
        .set_up_for(Client::Containerd, LOOPBACK_ADDRESS, &["docker.io"])
        .expect("set up");
    let hosts = machine
        .read("etc/containerd/certs.d/docker.io/hosts.toml")
        .expect("a file");
    assert!(
        hosts.starts_with("server = \"https://registry-1.docker.io\"\n"),
        "{hosts}"
    );
    assert_eq!(
        machine.read("etc/containerd/certs.d/_default/hosts.toml"),
        None
    );
    // A second run for all registries undoes the first run for one registry.
    machine
        .set_up(Client::Containerd, LOOPBACK_ADDRESS)
        .expect("set up");
    assert_eq!(
        machine.read("etc/containerd/certs.d/docker.io/hosts.toml"),
        None
    );
    machine.undo(Client::Containerd).expect("undone");
    assert!(!machine.path("etc").exists());
}

#[test]
fn a_user_setup_changes_files_of_the_user_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, state) = (folder.path().join("config"), folder.path().join("state"));
    let root = ConfigRoot::user(&config, &state);
    let address = LOOPBACK_ADDRESS.parse().expect("an address");
    let options = Options {
        client: Client::Docker,
        address: &address,
        ca: None,
        registries: &[],
        config: None,
    };
    let lock = SetupLock::take(&root).expect("a lock");
    let setup = Setup::plan(&root, &options).expect("a plan");
    setup.apply(&lock).expect("applied");
    assert!(config.join("docker/daemon.json").is_file());
    assert!(state.join("pierhead-setup/docker.json").is_file());
    let undo = Undo::plan(&root, Client::Docker)
        .expect("read")
        .expect("a record");
    undo.apply(&lock).expect("undone");
    drop(lock);
    assert!(undo.is_complete());
    assert!(!config.exists() && !state.exists(), "no folder remains");
}
