//! End-to-end tests of bundles under failures: killed workers, concurrent pulls, read-only disks,
//! and access to contents through another repository.

use std::{
    fs,
    io::Read as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use pierhead_testkit::{http::Request, images::digest_of};
use pierhead_tests::{
    namespace, paths,
    pierhead::{Options, Pierhead},
    tool::or_skip,
    wait,
};

use crate::bundles::{assert_same_files, files, http, image, pull, stage};
use crate::requests::{ask, get};

/// Starts `pierhead pull` without waiting for its end.
fn start(via: &str, version: u64, store: &Path, more: &[&str]) -> Result<Child> {
    let mut command = Command::new(paths::pierhead()?);
    command
        .args(["pull", &format!("app:{version}"), "--via", via, "--into"])
        .arg(store)
        .args(more);
    let quiet = command.stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(quiet.spawn()?)
}

/// A client gets file contents only through a repository from which it may pull their image.
#[test]
fn file_contents_need_pull_access_to_their_repository() -> Result<()> {
    let folder = paths::scratch("trouble")?;
    let users = folder.path().join("htpasswd");
    fs::write(&users, format!("ann:{}\n", bcrypt::hash("word", 4)?))?;
    let config = format!(
        "[auth]\nmode = \"htpasswd\"\nhtpasswd = {users:?}\n[access]\ndeny = [\"docker.io/library/closed\"]\n"
    );
    let (hub, pierhead) = stage(Options::new().config(&config))?;
    let (own, other) = (files(1), files(7));
    hub.push("library/other", "1", &image(&other));
    hub.push("library/closed", "1", &image(&own));
    // Base64 of `ann:word`.
    let login = |path: &str| {
        let request = Request::get(path).header("authorization", "Basic YW5uOndvcmQ=");
        ask(pierhead.address(), &request)
    };
    for repository in ["app", "other"] {
        let word = folder.path().join("word");
        fs::write(&word, "word")?;
        let store = folder.path().join(repository);
        let via = http(pierhead.address());
        let mut command = Command::new(paths::pierhead()?);
        command
            .args([
                "pull",
                &format!("{repository}:1"),
                "--via",
                &via,
                "--user",
                "ann",
            ])
            .arg("--password-file")
            .arg(&word)
            .arg("--into")
            .arg(&store);
        ensure!(command.output()?.status.success(), "{repository}");
    }
    let program = |files: &crate::bundles::Files| files[41].1.clone();
    let image_of = |files: &crate::bundles::Files| image(files).root;
    let mut seen = Vec::new();
    for repository in [
        "library/app",
        "library/other",
        "library/closed",
        "library/none",
    ] {
        for of in [&own, &other] {
            let (bytes, manifest) = (program(of), image_of(of));
            let path = format!("/v2/{repository}/manifests/{manifest}");
            let as_pull = login(&path)?.status;
            let file = format!(
                "/v2/{repository}/_pierhead/file/{}?image={manifest}",
                digest_of(&bytes)
            );
            let response = login(&file)?;
            assert_eq!(
                response.status, as_pull,
                "{file}: a pull has the status {as_pull}"
            );
            ensure!(
                (response.status == 200) == (response.body[..] == bytes[..]),
                "{file}"
            );
            assert_eq!(get(pierhead.address(), &file)?.status, 401, "{file}");
            seen.push((repository, as_pull));
        }
    }
    ensure!(seen.contains(&("library/app", 200)), "{seen:?}");
    ensure!(seen.contains(&("library/closed", 403)), "{seen:?}");
    // A named image contains only its own file contents, so the contents of another image are not
    // found.
    let strange = format!(
        "/v2/library/app/_pierhead/file/{}?image={}",
        digest_of(&program(&other)),
        image_of(&own)
    );
    assert_eq!(login(&strange)?.status, 404);
    Ok(())
}

/// After a kill during an export, the store is intact, and a second run of the command completes
/// the export.
#[test]
fn a_killed_export_is_completed_by_the_next_run() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("trouble")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    pull(&via, "1", &store, &[])?;
    for form in ["rootfs", "oci-layout", "docker-archive"] {
        let output = folder.path().join(form);
        let shown = output.to_str().context("UTF-8")?;
        let words = ["--as", form, "--output", shown];
        // Waits until the export has written a file.
        let before = fs::read_dir(folder.path())?.count();
        let mut child = start(&via, 1, &store, &words)?;
        wait::try_until("the export", || {
            let has_started = fs::read_dir(folder.path())?.count() > before;
            Ok((has_started || child.try_wait()?.is_some()).then_some(()))
        })?;
        child.kill()?;
        child.wait()?;
        let mut again = pull(&via, "1", &store, &words);
        // The next run treats the incomplete tree as a folder of another program: it names the
        // folder in an error, and writes nothing into it.
        if let (Err(refused), "rootfs") = (&again, form) {
            let text = refused.to_string();
            ensure!(text.contains("not empty") && text.contains(shown), "{text}");
            fs::remove_dir_all(&output)?;
            again = pull(&via, "1", &store, &words);
        }
        again.with_context(|| format!("{form} after a kill"))?;
        if form == "rootfs" {
            assert_same_files(&output, &files(1))?;
        }
    }
    // No process reads the output of the export, so the export is still running.
    let mut child = start(
        &via,
        2,
        &store,
        &["--as", "docker-archive", "--output", "-"],
    )?;
    let mut first = [0; 512];
    child
        .stdout
        .as_mut()
        .context("a pipe")?
        .read_exact(&mut first)?;
    child.kill()?;
    ensure!(
        !child.wait()?.success(),
        "the export must block on the full pipe"
    );
    let root = folder.path().join("again");
    let shown = root.to_str().context("UTF-8")?;
    pull(&via, "2", &store, &["--as", "rootfs", "--output", shown])?;
    assert_same_files(&root, &files(2))
}

#[test]
fn five_concurrent_pulls_into_one_store_succeed() -> Result<()> {
    let (_hub, pierhead) = stage(Options::new())?;
    let folder = paths::scratch("trouble")?;
    let (store, via) = (folder.path().join("store"), http(pierhead.address()));
    let reports = thread::scope(|scope| {
        let pulls: Vec<_> = ["1", "1", "2", "1", "2"]
            .into_iter()
            .enumerate()
            .map(|(number, version)| {
                let root = folder.path().join(number.to_string());
                let (store, via) = (&store, &via);
                scope.spawn(move || -> Result<()> {
                    let output = root.to_str().context("UTF-8")?;
                    pull(via, version, store, &["--as", "rootfs", "--output", output])?;
                    assert_same_files(&root, &files(version.parse()?))
                })
            })
            .collect();
        pulls
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .collect::<Vec<_>>()
    });
    for (number, report) in reports.into_iter().enumerate() {
        report.with_context(|| format!("pull {number}"))?;
    }
    let left = fs::read_dir(&store)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        !left
            .iter()
            .any(|it| it.to_string_lossy().contains("partial")),
        "{left:?}"
    );
    Ok(())
}

/// The bundle folders are read-only: pierhead still serves pulls, and workers pull layers instead
/// of bundles.
#[test]
fn read_only_bundle_folders_disable_bundles_only() -> Result<()> {
    if or_skip(namespace::available()).is_none() {
        return Ok(());
    }
    let folder = paths::scratch("trouble")?;
    let data = folder.path().join("data");
    Pierhead::start(Options::new().data(&data))?.stop()?;
    let mut mounts = String::new();
    for name in ["directory", "index", "packs", "plans"] {
        let path = data.join(name);
        ensure!(path.is_dir(), "{name} is not created at the start");
        let shown = path.display();
        mounts += &format!("mount --bind {shown} {shown}\nmount -o remount,bind,ro {shown}\n");
    }
    let options = Options::new()
        .data(&data)
        .inside(namespace::mounted(&mounts));
    let (_hub, pierhead) = stage(options)?;
    ensure!(
        pierhead.log().contains("Read-only file system"),
        "{}",
        pierhead.log()
    );
    let store = folder.path().join("store");
    let report = pull(&http(pierhead.address()), "1", &store, &["--as", "rootfs"])?;
    assert_eq!(report["method"], "layers", "{report}");
    assert_same_files(&store.join("rootfs"), &files(1))
}
