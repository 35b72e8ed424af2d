//! Tests of atomic writes: steps, failures and crashes at each step, concurrent writers, modes.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The steps of one write, without their paths.
fn steps(options: Options<'_>, target: &Path) -> Vec<&'static str> {
    let steps = RefCell::new(Vec::new());
    let on_step = |step: Step<'_>| {
        steps.borrow_mut().push(match step {
            Step::Create(_) => "create",
            Step::Sync(_) => "sync",
            Step::Rename(..) => "rename",
            Step::SyncFolder(_) => "sync folder",
        });
        Ok(())
    };
    options.on_step(&on_step).write(target, b"new").unwrap();
    steps.into_inner()
}

#[test]
fn a_durable_write_syncs_the_file_before_the_rename_and_the_folder_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    assert_eq!(
        steps(Options::new(), &target),
        ["create", "sync", "rename", "sync folder"]
    );
    assert_eq!(
        steps(Options::new().without_sync(), &target),
        ["create", "rename"]
    );
    assert_eq!(fs::read(&target).unwrap(), b"new");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn a_failure_at_any_step_leaves_old_or_new_contents_and_no_temporary_file() {
    for failing in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        write(&target, b"old").unwrap();
        let count = Cell::new(0);
        let on_step = |_: Step<'_>| {
            count.set(count.get() + 1);
            match count.get() > failing {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        };
        let written = Options::new().on_step(&on_step).write(&target, b"new");
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull);
        // Only the sync of the folder comes after the rename, so the file has the new contents if
        // that step fails.
        let expected: &[u8] = if failing < 3 { b"old" } else { b"new" };
        assert_eq!(
            fs::read(&target).unwrap(),
            expected,
            "failed at step {failing}"
        );
        assert_eq!(names(folder.path()), ["file"], "failed at step {failing}");
    }
}

#[test]
fn a_crash_at_any_step_leaves_old_or_new_contents_that_were_synced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    write(&target, b"old").unwrap();
    let (synced, images) = (Cell::new(false), Cell::new(0));
    let on_step = |step: Step<'_>| {
        // The folder now has the state that a process leaves when it is killed at this step.
        let found = fs::read(&target).unwrap();
        assert!(found == b"old" || found == b"new", "{found:?}");
        // Simulates a power cut: the rename may be durable before the bytes of the file, unless the
        // file was synced.
        if let Step::Rename(from, to) = step {
            assert!(synced.get(), "renamed before it was synced");
            assert_eq!(fs::read(from).unwrap(), b"new");
            assert_eq!(to, target);
        }
        synced.set(synced.get() || matches!(step, Step::Sync(_)));
        images.set(images.get() + 1);
        Ok(())
    };
    Options::new()
        .on_step(&on_step)
        .write(&target, b"new")
        .unwrap();
    assert_eq!(images.get(), 4);
}

#[test]
fn a_fill_that_fails_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    write(&target, b"old").unwrap();
    let filled = Options::new().write_with(&target, |file| {
        file.write_all(b"half")?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    });
    assert!(filled.is_err());
    drop(Options::new().create(&target).unwrap());
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn two_writers_of_one_target_have_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    let mut first = Options::new().create(&target).unwrap();
    let mut second = Options::new().create(&target).unwrap();
    assert_eq!(names(folder.path()), ["file.1.partial", "file.partial"]);
    first.write_all(b"first").unwrap();
    second.write_all(b"second").unwrap();
    second.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"second");
    first.commit().unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"first");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn a_temporary_file_of_a_killed_writer_is_deleted_and_a_link_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let (target, other) = (folder.path().join("file"), folder.path().join("other"));
    let left = folder.path().join("file.partial");
    fs::write(&left, "a longer text of a killed process").unwrap();
    write(&target, b"new").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"new");
    fs::write(&other, "other").unwrap();
    symlink(&other, &left).unwrap();
    write(&target, b"newer").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"newer");
    assert_eq!(fs::read(&other).unwrap(), b"other");
    assert_eq!(names(folder.path()), ["file", "other"]);
}

#[test]
fn abandoned_files_are_deleted_and_those_of_live_writers_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    let live = Options::new().create(&target).unwrap();
    fs::write(folder.path().join("file.1.partial"), "").unwrap();
    delete_abandoned(&target).unwrap();
    assert_eq!(names(folder.path()), ["file.partial"]);
    live.commit().unwrap();
    delete_abandoned(&target).unwrap();
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn abandoned_files_are_deleted_under_all_names() {
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("file.2.partial");
    fs::write(left, "the files of earlier names are gone").unwrap();
    delete_abandoned(&folder.path().join("file")).unwrap();
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

#[test]
fn an_exclusive_writer_fails_while_another_writer_exists() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    fs::write(folder.path().join("file.partial"), "of a killed process").unwrap();
    let exclusive = Options::new().exclusive();
    let first = exclusive.create(&target).unwrap();
    let second = exclusive.create(&target).unwrap_err();
    assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);
    assert_eq!(names(folder.path()), ["file.partial"]);
    drop(first);
    exclusive.write(&target, b"new").unwrap();
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn a_mode_is_exact_and_not_that_of_an_abandoned_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("secret");
    let left = folder.path().join("secret.partial");
    fs::write(&left, "").unwrap();
    fs::set_permissions(&left, Permissions::from_mode(0o666)).unwrap();
    let file = Options::new().mode(0o600).create(&target).unwrap();
    assert_eq!(mode(file.path()), 0o600);
    file.commit().unwrap();
    assert_eq!(mode(&target), 0o600);
    Options::new().mode(0o666).write(&target, b"").unwrap();
    assert_eq!(mode(&target), 0o666);
}

#[test]
fn a_replaced_file_keeps_its_mode_and_owner() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    let options = Options::new().mode(0o640).keep_owner();
    options.write(&target, b"old").unwrap();
    assert_eq!(mode(&target), 0o640);
    fs::set_permissions(&target, Permissions::from_mode(0o604)).unwrap();
    // Only root can change the owner.
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(&target, Some(1234), Some(5678)).unwrap();
    }
    options.write(&target, b"new").unwrap();
    let new = fs::metadata(&target).unwrap();
    assert_eq!(mode(&target), 0o604);
    if is_root {
        assert_eq!((new.uid(), new.gid()), (1234, 5678));
    }
}

#[test]
fn without_replacement_a_target_that_exists_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("file");
    Options::new().no_replace().write(&target, b"old").unwrap();
    let error = Options::new()
        .no_replace()
        .write(&target, b"new")
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&target).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["file"]);
}

#[test]
fn a_file_of_the_caller_is_published_from_another_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (from, target) = (
        folder.path().join("staged"),
        folder.path().join("blobs/file"),
    );
    let mut file = File::create(&from).unwrap();
    file.write_all(b"staged").unwrap();
    let published = Options::new().publish(&file, &from, &target);
    assert!(published.is_err(), "its folder is missing");
    assert!(from.exists());
    fs::create_dir(folder.path().join("blobs")).unwrap();
    Options::new().publish(&file, &from, &target).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"staged");
    assert!(!from.exists());
}

#[test]
fn a_bare_name_is_in_the_working_folder() {
    assert_eq!(folder_of(Path::new("file")), Path::new("."));
    assert_eq!(folder_of(Path::new("a/file")), Path::new("a"));
}
