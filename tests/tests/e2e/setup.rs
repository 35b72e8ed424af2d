//! End-to-end tests of `pierhead setup`: after `setup`, pulls of real clients by the usual image
//! names go through pierhead, and `--undo` restores every byte of the configuration files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use pierhead_tests::{
    clients::{Client, Containerd, Docker, Podman},
    image::images,
    layout::Image,
    paths,
    pierhead::{Options, Pierhead},
    process,
    registry::{self, Registry},
    tool::{self, Missing, or_skip},
};

/// The configuration folder of a user, for `setup --user`.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Result<Self> {
        Ok(Self(paths::scratch("home")?))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Runs setup. Returns its standard output.
    fn setup(&self, words: &[&str]) -> Result<String> {
        process::stdout(&mut self.command(words)?)
    }

    /// Runs setup. Returns its standard output and standard error.
    fn run_with_errors(&self, words: &[&str]) -> Result<String> {
        process::run(&mut self.command(words)?)
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = Command::new(paths::pierhead()?);
        command
            .arg("setup")
            .args(words)
            .args(["--user", "--yes", "--admin", "127.0.0.1:1"])
            .env("HOME", self.0.path())
            .env("XDG_CONFIG_HOME", self.path(".config"))
            .env("XDG_STATE_HOME", self.path(".state"));
        Ok(command)
    }

    fn files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut found = Vec::new();
        visit(self.0.path(), &mut found)?;
        found.sort();
        Ok(found)
    }
}

fn visit(folder: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            visit(&path, found)?;
        } else {
            found.push((path.clone(), fs::read(&path)?));
        }
    }
    Ok(())
}

/// Starts a registry with a small image, and a pierhead that serves this registry as Docker Hub.
fn hub() -> Result<(Image, Registry, Pierhead)> {
    let image = images()?.small;
    let registry = Registry::start(&[&image])?;
    let pierhead = Pierhead::start(Options::new().upstream("docker.io", &registry.url()))?;
    Ok((image, registry, pierhead))
}

/// Whether pierhead got a request for a manifest.
fn has_manifest_requests(pierhead: &Pierhead) -> bool {
    pierhead.log().contains(" pull reference=docker.io/")
}

/// A running dockerd applies setup and its undo after SIGHUP, except that it keeps a removed mirror
/// until its restart.
#[test]
fn docker_pulls_through_pierhead_until_undo() -> Result<()> {
    if or_skip(Docker::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let (image, _registry, pierhead) = hub()?;
    let mut docker = Docker::start(&serde_json::json!({"debug": true}), String::new())?;
    let home = Home::new()?;
    let config = docker.config();
    let before = fs::read(&config)?;
    let file = config.to_str().context("UTF-8")?.to_owned();
    let address = format!("http://{}", pierhead.address());

    let shown = home.setup(&["docker", "--config", &file, "--address", &address])?;
    ensure!(shown.contains(&address), "no diff: {shown}");
    docker.reload()?;
    ensure!(
        docker.docker(&["info"])?.contains(&address),
        "docker has no mirror"
    );
    assert_eq!(docker.pull(&image.name())?.root, image.root);
    ensure!(
        has_manifest_requests(&pierhead),
        "pierhead got no request: {}",
        pierhead.log()
    );
    assert_eq!(
        home.setup(&["docker", "--config", &file, "--address", &address])?,
        ""
    );

    let output = home.run_with_errors(&["docker", "--undo"])?;
    assert_eq!(fs::read(&config)?, before);
    // dockerd removes a mirror only at its start: SIGHUP ignores a removed key.
    ensure!(output.contains("restart docker"), "{output}");
    docker.reload()?;
    ensure!(
        docker.docker(&["info"])?.contains(&address),
        "dockerd supports the removal: remove this message"
    );
    assert_eq!(home.files()?, []);
    Ok(())
}

/// Tests `hosts.toml` with containerd 1.6 and 2.x, and the `config_path` of their CRI plugin.
fn containerd(programs: Result<(PathBuf, PathBuf), Missing>, config: &str) -> Result<()> {
    let Some(programs) = or_skip(programs) else {
        return Ok(());
    };
    if or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let (image, _registry, pierhead) = hub()?;
    let home = Home::new()?;
    let main = home.path(".config/containerd/config.toml");
    let certs = home.path(".config/containerd/certs.d");
    let imports = home.path(".config/containerd/conf.d/*.toml");
    fs::create_dir_all(main.parent().context("a folder")?)?;
    fs::write(
        &main,
        config.replace("IMPORTS", &imports.display().to_string()),
    )?;
    let before = home.files()?;
    let address = format!("http://{}", pierhead.address());

    let shown = home.setup(&["containerd", "--address", &address])?;
    ensure!(shown.contains(&address), "no diff: {shown}");
    let dump = process::stdout(
        Command::new(&programs.0)
            .arg("--config")
            .arg(&main)
            .args(["config", "dump"]),
    )?;
    let folder = certs.display().to_string();
    let reads = |line: &str| line.trim_start().starts_with("config_path") && line.contains(&folder);
    ensure!(
        dump.lines().any(reads),
        "containerd has another config_path:
{dump}"
    );
    // Earlier settings of the file must still apply.
    ensure!(
        dump.contains("max_concurrent_downloads = 7") || !config.contains("= 7"),
        "a setting was lost:\n{dump}"
    );

    // The test's own hosts folder points the registry to an unreachable address.
    let containerd = Containerd::start_as(programs, "docker.io", "http://127.0.0.1:1", "")?;
    let name = format!("docker.io/{}", image.name());
    containerd.ctr(&["images", "pull", "--hosts-dir", &folder, &name])?;
    ensure!(
        has_manifest_requests(&pierhead),
        "pierhead got no request: {}",
        pierhead.log()
    );
    ensure!(
        containerd.contents()?.contains(&image.root),
        "another image was pulled"
    );

    assert_eq!(home.setup(&["containerd", "--address", &address])?, "");
    home.setup(&["containerd", "--undo"])?;
    assert_eq!(home.files()?, before);
    Ok(())
}

const SECTION_2: &str = "[plugins.\"io.containerd.grpc.v1.cri\"]\n  max_concurrent_downloads = 7\n";

#[test]
fn containerd_2_reads_a_configuration_of_version_3() -> Result<()> {
    containerd(
        Containerd::find(),
        "version = 3\nimports = [\"IMPORTS\"]\n[plugins.'io.containerd.cri.v1.images']\n  max_concurrent_downloads = 7",
    )
}

#[test]
fn containerd_2_reads_a_configuration_of_version_2() -> Result<()> {
    containerd(Containerd::find(), &format!("version = 2\r\n{SECTION_2}"))
}

/// An empty containerd configuration. The configuration does not include the drop-in files of the
/// machine.
#[test]
fn containerd_2_reads_an_empty_configuration() -> Result<()> {
    containerd(Containerd::find(), "version = 2")
}

/// Debian's containerd, which its docker package installs.
fn containerd_1() -> Result<(PathBuf, PathBuf), Missing> {
    tool::root()?;
    let (daemon, ctr) = (
        PathBuf::from("/usr/bin/containerd"),
        PathBuf::from("/usr/bin/ctr"),
    );
    if daemon.exists() && ctr.exists() {
        Ok((daemon, ctr))
    } else {
        Err(Missing::new(
            "no Debian package of containerd on this machine: `cargo xtask test` installs it",
        ))
    }
}

#[test]
fn containerd_1_reads_a_configuration_of_version_2() -> Result<()> {
    containerd(
        containerd_1(),
        &format!("version = 2\nimports = [\"IMPORTS\"]\n{SECTION_2}"),
    )
}

/// podman finds the drop-in file by itself. podman reads registries.conf by the same library as
/// CRI-O.
#[test]
fn podman_pulls_through_pierhead_until_undo() -> Result<()> {
    if or_skip(Podman::find()).is_none() || or_skip(registry::find()).is_none() {
        return Ok(());
    }
    let (image, _registry, pierhead) = hub()?;
    let home = Home::new()?;
    let podman = Podman::with_home("docker.io", home.0.path())?;
    let before = home.files()?;
    let address = format!("http://{}", pierhead.address());
    let shown = home.setup(&["podman", "--address", &address])?;
    ensure!(
        shown.contains(&pierhead.address().to_string()),
        "no diff: {shown}"
    );
    assert_eq!(podman.pull(&image.name())?.root, image.root);
    ensure!(
        has_manifest_requests(&pierhead),
        "pierhead got no request: {}",
        pierhead.log()
    );
    assert_eq!(home.setup(&["crio", "--address", &address])?, "");
    home.setup(&["crio", "--undo"])?;
    let restored: Vec<_> = home
        .files()?
        .into_iter()
        // Leaves out files that podman itself writes into a home folder.
        .filter(|(path, _)| {
            !path.starts_with(home.path(".local")) && !path.starts_with(home.path(".cache"))
        })
        .collect();
    assert_eq!(restored, before);
    Ok(())
}
