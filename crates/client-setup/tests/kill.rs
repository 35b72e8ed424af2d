//! Tests of setup and undo that were killed after any of their writes: the next run completes the
//! work, and an undo restores every original byte.

mod machine;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use machine::{LOOPBACK_ADDRESS, Machine, REMOTE_ADDRESS};
use pierhead_client_setup::{Client, SetupLock};

/// Files of a machine on which the clients are already configured.
const FILES: [(&str, &str); 4] = [
    (
        "etc/docker/daemon.json",
        "{\n  \"registry-mirrors\": [\"https://m.lab\"]\n}\n",
    ),
    (
        "etc/containerd/config.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"p\"\n",
    ),
    (
        "etc/containerd/certs.d/_default/hosts.toml",
        "[host.\"https://m.lab\"]\n  capabilities = [\"pull\"]\n",
    ),
    (
        "etc/containers/registries.conf",
        "[[registry]]\nlocation = \"quay.io\"\n",
    ),
];

/// Returns the text of every file below the root, without the records.
fn texts(machine: &Machine) -> BTreeMap<PathBuf, String> {
    let all = machine.everything();
    let files = all.into_iter().filter(|path| path.is_file());
    let files = files.filter(|path| !path.to_string_lossy().contains("pierhead-setup"));
    files
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a text");
            (path, text)
        })
        .collect()
}

/// Replaces the first `count` files that differ between `from` and `to` by their text in `to`. The
/// other files keep their text in `from`.
fn write_some(
    machine: &Machine,
    from: &BTreeMap<PathBuf, String>,
    to: &BTreeMap<PathBuf, String>,
    count: usize,
) {
    let paths: std::collections::BTreeSet<_> = from.keys().chain(to.keys()).collect();
    let changed = paths
        .into_iter()
        .filter(|path| from.get(*path) != to.get(*path));
    for (nth, path) in changed.enumerate() {
        let text = if nth < count {
            to.get(path)
        } else {
            from.get(path)
        };
        match text {
            Some(text) => {
                fs::create_dir_all(path.parent().expect("a folder")).expect("created");
                fs::write(path, text).expect("written");
            }
            None => {
                let _ = fs::remove_file(path);
            }
        }
    }
    assert!(machine.path("etc").is_dir());
}

/// Returns the number of files that differ.
fn differences(one: &BTreeMap<PathBuf, String>, other: &BTreeMap<PathBuf, String>) -> usize {
    let paths: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
    let differ = paths
        .into_iter()
        .filter(|path| one.get(*path) != other.get(*path));
    differ.count()
}

fn cases() -> impl Iterator<
    Item = (
        Client,
        &'static str,
        &'static [(&'static str, &'static str)],
    ),
> {
    let addresses = [LOOPBACK_ADDRESS, REMOTE_ADDRESS];
    Client::ALL.into_iter().flat_map(move |client| {
        addresses
            .into_iter()
            .flat_map(move |address| [(client, address, &FILES[..]), (client, address, &[])])
    })
}

#[test]
fn a_setup_that_was_killed_after_any_write_is_undone() {
    for (client, address, files) in cases() {
        let mut killed_after = 0;
        loop {
            let machine = Machine::new(files);
            machine.write("etc/hostname", "a\n");
            let before = texts(&machine);
            machine.set_up(client, address).expect("set up");
            let after = texts(&machine);
            write_some(&machine, &before, &after, killed_after);
            machine.undo(client).expect("undone");
            assert_eq!(texts(&machine), before, "{client} {address} {killed_after}");
            if killed_after == differences(&before, &after) {
                break;
            }
            killed_after += 1;
        }
        assert!(killed_after > 0);
    }
}

#[test]
fn a_setup_that_was_killed_after_any_write_is_completed_by_the_next_run() {
    for (client, address, files) in cases() {
        let machine = Machine::new(files);
        machine.write("etc/hostname", "a\n");
        let before = texts(&machine);
        machine.set_up(client, address).expect("set up");
        let after = texts(&machine);
        for killed_after in 0..=differences(&before, &after) {
            write_some(&machine, &before, &after, killed_after);
            machine.set_up(client, address).expect("completed");
            assert_eq!(texts(&machine), after, "{client} {address} {killed_after}");
        }
        machine.undo(client).expect("undone");
        assert_eq!(texts(&machine), before);
    }
}

#[test]
fn a_second_setup_that_was_killed_after_any_write_still_knows_the_originals() {
    for (client, _, files) in cases() {
        for is_completed in [true, false] {
            let mut killed_after = 0;
            loop {
                let machine = Machine::new(files);
                machine.write("etc/hostname", "a\n");
                let original = texts(&machine);
                machine.set_up(client, LOOPBACK_ADDRESS).expect("set up");
                let first = texts(&machine);
                machine
                    .set_up(client, REMOTE_ADDRESS)
                    .expect("set up again");
                let second = texts(&machine);
                // The second run writes its record before its files.
                write_some(&machine, &first, &second, killed_after);
                if is_completed {
                    machine.set_up(client, REMOTE_ADDRESS).expect("completed");
                    assert_eq!(texts(&machine), second, "{client} {killed_after}");
                }
                machine.undo(client).expect("undone");
                assert_eq!(texts(&machine), original, "{client} {killed_after}");
                if killed_after == differences(&first, &second) {
                    break;
                }
                killed_after += 1;
            }
        }
    }
}

#[test]
fn an_undo_that_was_killed_after_any_write_is_completed_by_the_next_one() {
    for (client, address, files) in cases() {
        let machine = Machine::new(files);
        machine.write("etc/hostname", "a\n");
        let before = texts(&machine);
        machine.set_up(client, address).expect("set up");
        let after = texts(&machine);
        let records = machine.path("var/lib/pierhead-setup");
        let record = fs::read_dir(&records).expect("records").next();
        let record = record.expect("a record").expect("an entry").path();
        let saved = fs::read(&record).expect("read");
        for killed_after in 0..=differences(&before, &after) {
            // The undo removes the record after it has restored the last file.
            write_some(&machine, &after, &before, killed_after);
            fs::create_dir_all(&records).expect("created");
            fs::write(&record, &saved).expect("written");
            machine.undo(client).expect("undone");
            assert_eq!(texts(&machine), before, "{client} {address} {killed_after}");
            assert!(!record.exists());
        }
    }
}

#[test]
fn a_second_process_waits_until_the_first_has_finished() {
    let machine = Machine::new(&FILES);
    let lock = SetupLock::take(&machine.root).expect("a lock");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let machine = &machine;
        scope.spawn(move || {
            let changes = machine
                .set_up(Client::Docker, LOOPBACK_ADDRESS)
                .expect("set up");
            sender.send(changes).expect("sent");
        });
        let early = receiver.recv_timeout(std::time::Duration::from_millis(200));
        assert!(early.is_err(), "the second process has not waited");
        drop(lock);
        assert_eq!(receiver.recv().expect("finished"), 1);
    });
}
