//! Checks the handling of corrupt blobs, damaged databases, foreign data folders and full disks.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
    process::Command,
    thread,
};

use anyhow::{Context, Result};
use pierhead_testkit::{
    http::End,
    images::{Image, random_bytes},
    registry::{FakeRegistry, Fault, Gate},
};
use pierhead_tests::{
    paths,
    pierhead::{Options, Pierhead},
    process, tool,
    tool::or_skip,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::requests::{committed, get, pull, start_in_front, wait_for_commit};

#[test]
fn a_flipped_bit_is_detected_and_the_blob_is_refetched() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, 3_000_000);
    let digest = hub.put_blob("library/app", bytes.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    let mut gets = 1;
    assert_eq!(get(pierhead.address(), &path)?.body, bytes);
    for (at, restart) in [(0, false), (1_500_000, true), (2_999_999, false)] {
        assert_eq!(hub.gets_of(&digest), gets);
        flip(&wait_for_commit(&pierhead, &digest.to_string())?, at)?;
        if restart {
            pierhead.restart()?;
        }
        // If pierhead finds the damage after it has sent the response head, it aborts this
        // response. The response never ends as complete.
        let first = get(pierhead.address(), &path)?;
        if first.status == 200 && first.end == End::Clean {
            assert_eq!(first.body, bytes, "the corrupt byte at {at} was served");
        }
        let second = get(pierhead.address(), &path)?;
        assert_eq!((second.status, second.end), (200, End::Clean));
        assert_eq!(second.body, bytes);
        gets += 1;
        assert_eq!(
            hub.gets_of(&digest),
            gets,
            "the blob with a corrupt byte at {at} is refetched once"
        );
    }
    Ok(())
}

/// pierhead removes anything but a regular file in place of a blob, and fetches the blob again.
#[test]
fn a_blob_path_without_a_regular_file_is_refetched() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let bytes = random_bytes(1, 300_000);
    let digest = hub.put_blob("library/app", bytes.clone()).to_string();
    let path = format!("/v2/library/app/blobs/{digest}");
    assert_eq!(get(pierhead.address(), &path)?.body, bytes);
    type Put = fn(&Path) -> Result<()>;
    let puts: [(&str, Put); 2] = [
        ("a pipe", |path| {
            let mode = Mode::from(0o600);
            Ok(mknodat(CWD, path, FileType::Fifo, mode, 0)?)
        }),
        ("a folder", |path| Ok(fs::create_dir(path)?)),
    ];
    for (what, put) in puts {
        for restart in [false, true] {
            let blob = wait_for_commit(&pierhead, &digest)?;
            fs::remove_file(&blob)?;
            put(&blob)?;
            if restart {
                pierhead.restart().with_context(|| what.to_owned())?;
            }
            let response = get(pierhead.address(), &path)?;
            assert_eq!((response.status, response.end), (200, End::Clean), "{what}");
            assert_eq!(response.body, bytes, "{what}");
        }
    }
    wait_for_commit(&pierhead, &digest)?;
    assert_eq!(hub.gets_of(&digest.parse()?), 5);
    pierhead.stop()?;
    assert_eq!(committed(pierhead.data())?, 1);
    Ok(())
}

/// pierhead rebuilds a damaged database from the files on disk.
#[test]
fn a_damaged_database_is_rebuilt() -> Result<()> {
    let (hub, mut pierhead) = start_in_front(FakeRegistry::builder(), Options::new())?;
    let image = Image::random(2, &[100_000, 200_000]);
    hub.push("library/app", "1", &image);
    pull(&pierhead, "library/app", &image)?;
    hub.stop();
    let catalog = pierhead.data().join("catalog");
    type Damage = fn(&Path) -> Result<()>;
    let damages: [(&str, Damage); 3] = [
        ("removed", |catalog| Ok(fs::remove_dir_all(catalog)?)),
        ("overwritten", |catalog| {
            each_file(catalog, &|file| Ok(fs::write(file, [0x5a; 4096])?))
        }),
        ("cut", |catalog| {
            each_file(catalog, &|file| {
                Ok(File::options().write(true).open(file)?.set_len(7)?)
            })
        }),
    ];
    for (what, damage) in damages {
        pierhead.stop()?;
        damage(&catalog).with_context(|| format!("{} {what}", catalog.display()))?;
        pierhead
            .restart()
            .with_context(|| format!("the database was {what}"))?;
        pull(&pierhead, "library/app", &image)
            .with_context(|| format!("the database was {what}"))?;
    }
    Ok(())
}

#[test]
fn a_data_folder_of_another_version_is_refused() -> Result<()> {
    let folder = paths::scratch("data")?;
    let mut pierhead = Pierhead::start(Options::new().data(folder.path()))?;
    pierhead.stop()?;
    let version = folder.path().join("version");
    let ours = fs::read_to_string(&version)?;
    fs::write(&version, "pierhead 4711\n")?;
    let before = names(folder.path())?;
    let (status, output) = Pierhead::refuses(&Options::new().data(folder.path()))?;
    assert!(!status.success());
    assert!(output.contains("version"), "{output}");
    assert!(
        output.contains(&folder.path().display().to_string()),
        "{output}"
    );
    assert_eq!(
        names(folder.path())?,
        before,
        "the refused folder was changed"
    );
    assert_eq!(fs::read_to_string(&version)?, "pierhead 4711\n");
    fs::write(&version, ours)?;
    Pierhead::start(Options::new().data(folder.path())).map(drop)
}

#[test]
fn a_data_folder_in_use_is_refused() -> Result<()> {
    let folder = paths::scratch("data")?;
    let mut first = Pierhead::start(Options::new().data(folder.path()))?;
    let (status, output) = Pierhead::refuses(&Options::new().data(folder.path()))?;
    assert!(!status.success());
    assert!(
        output.contains(&folder.path().display().to_string()),
        "{output}"
    );
    assert_eq!(get(first.address(), "/v2/")?.status, 200);
    // The lock of the first daemon is released when the daemon crashes.
    first.kill()?;
    Pierhead::start(Options::new().data(folder.path())).map(drop)
}

/// A mounted tmpfs of a limited size.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(mebibytes: u32) -> Result<Self> {
        let folder = paths::scratch("tmpfs")?;
        let size = format!("size={mebibytes}m");
        process::run(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
                .arg(folder.path()),
        )?;
        Ok(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills the file system completely.
    fn fill(&self) -> Result<std::path::PathBuf> {
        let path = self.path().join("filler");
        let file = File::create(&path)?;
        let piece = vec![1; 64 << 10];
        let mut at = 0;
        for size in [piece.len(), 4096, 1] {
            while let Ok(written @ 1..) = file.write_at(&piece[..size], at) {
                at += written as u64;
            }
        }
        Ok(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        process::unmount_below(self.path());
    }
}

/// Another program fills the disk during a pull. The pull succeeds. pierhead stores blobs again
/// once the disk has free space.
#[test]
fn a_pull_succeeds_when_the_disk_fills_up() -> Result<()> {
    if or_skip(tool::root()).is_none() {
        return Ok(());
    }
    let disk = Tmpfs::mount(96)?;
    let data = disk.path().join("data");
    let options = Options::new()
        .data(&data)
        .config("cache.size = \"64MiB\"\ncache.min_free = \"0B\"");
    let (hub, pierhead) = start_in_front(FakeRegistry::builder(), options)?;
    let small = hub.put_blob("library/app", random_bytes(8, 100_000));
    assert_eq!(
        get(
            pierhead.address(),
            &format!("/v2/library/app/blobs/{small}")
        )?
        .status,
        200
    );

    let bytes = random_bytes(9, 24 << 20);
    let digest = hub.put_blob("library/app", bytes.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    let gate = Gate::new();
    hub.inject(
        Fault::GateBody(8 << 20, gate.clone())
            .on_blob(&digest)
            .times(1),
    );
    let filler = thread::scope(|scope| -> Result<_> {
        let client = scope.spawn(|| get(pierhead.address(), &path));
        hub.wait(async |_| gate.reached(1).await);
        let filler = disk.fill()?;
        gate.release();
        let response = client.join().expect("no panic")?;
        assert_eq!(
            (response.status, response.end),
            (200, End::Clean),
            "the full disk failed a pull"
        );
        assert_eq!(response.body, bytes);
        Ok(filler)
    })?;
    // While the disk is full, pierhead serves cached blobs from disk, and streams other blobs
    // without storing them.
    assert_eq!(
        get(
            pierhead.address(),
            &format!("/v2/library/app/blobs/{small}")
        )?
        .status,
        200
    );
    let response = get(pierhead.address(), &path)?;
    assert_eq!((response.status, response.end), (200, End::Clean));
    assert_eq!(response.body, bytes);
    assert!(!pierhead.blob(&digest.to_string()).exists());

    fs::remove_file(filler)?;
    // pierhead streams the next blob for a while without storing it.
    let later = random_bytes(10, 8 << 20);
    let digest = hub.put_blob("library/app", later.clone());
    let path = format!("/v2/library/app/blobs/{digest}");
    assert_eq!(get(pierhead.address(), &path)?.body, later);
    wait_for_commit(&pierhead, &digest.to_string())?;
    Ok(())
}

pub(crate) fn flip(file: &Path, at: u64) -> Result<()> {
    // Makes the read-only file of the blob writable, because the test simulates corruption of the
    // disk.
    let mut permissions = fs::metadata(file)?.permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a temporary file")]
    permissions.set_readonly(false);
    fs::set_permissions(file, permissions)?;
    let file = File::options().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1;
    Ok(file.write_all_at(&byte, at)?)
}

fn each_file(folder: &Path, change: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            each_file(&path, change)?;
        } else {
            change(&path)?;
        }
    }
    Ok(())
}

/// The names of all entries of a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    each_file(folder, &|_| Ok(()))?;
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}
