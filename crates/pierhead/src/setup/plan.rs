//! What a client's files should say: read from the machine as it was before pierhead came.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};

use super::containerd::Says;
use super::containers::{self, Entries};
use super::place::Place;
use super::{Address, containerd, daemons, docker, hosts};
use crate::cli::setup::Client;
use crate::config::Problem;

/// The first file below `conf.d` that is ours.
const DROP_IN: &str = "50-pierhead";

/// What to set up.
pub(crate) struct Ask<'a> {
    pub(crate) client: Client,
    pub(crate) address: &'a Address,
    /// The text of a PEM file.
    pub(crate) ca: Option<&'a str>,
    /// Empty: the usual ones of the client.
    pub(crate) registries: &'a [String],
    /// The client's main file, where it is not the usual one.
    pub(crate) config: Option<&'a Path>,
}

/// Files and what they should hold, and what to say about it.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) files: BTreeMap<PathBuf, String>,
    pub(crate) notes: Vec<String>,
}

/// A machine as it was before: what pierhead once wrote is taken away again in thought.
pub(crate) struct Before<'a> {
    pub(crate) place: &'a Place,
    pub(crate) files: BTreeMap<PathBuf, Option<String>>,
}

impl Before<'_> {
    fn read(&self, path: &Path) -> anyhow::Result<Option<String>> {
        match self.files.get(path) {
            Some(text) => Ok(text.clone()),
            None => self.place.read(path),
        }
    }

    fn list(&self, folder: &Path, suffix: &str) -> anyhow::Result<Vec<PathBuf>> {
        let mut paths = self.place.list(folder, suffix)?;
        paths.retain(|path| !matches!(self.files.get(path), Some(None)));
        Ok(paths)
    }
}

/// A problem of one file, as people look for it.
pub(crate) fn in_file(place: &Place, path: &Path, problem: &Problem) -> anyhow::Error {
    let file = place.real(path);
    match problem.line {
        Some(line) => anyhow!("{}:{line}: {}", file.display(), problem.message),
        None => anyhow!("{}: {}", file.display(), problem.message),
    }
}

/// Plans it.
///
/// # Errors
/// A file that its own reader would not understand, or that cannot be changed safely; with its line.
pub(crate) fn plan(before: &Before<'_>, ask: &Ask<'_>) -> anyhow::Result<Plan> {
    match ask.client {
        Client::Docker => for_docker(before, ask),
        Client::Containerd => for_containerd(before, ask),
        Client::Podman | Client::Crio => for_containers(before, ask),
    }
}

/// dockerd's file: the one that is named, the one that it is started with, or the usual one.
pub(crate) fn docker_file(place: &Place, named: Option<&Path>) -> PathBuf {
    named
        .map(Path::to_owned)
        .or_else(|| daemons::dockerd_flags(place).config_file)
        .unwrap_or_else(|| place.etc("docker/daemon.json"))
}

fn for_docker(before: &Before<'_>, ask: &Ask<'_>) -> anyhow::Result<Plan> {
    let place = before.place;
    if let Some(other) = ask.registries.iter().find(|it| it.as_str() != "docker.io") {
        bail!(
            "docker has mirrors for docker.io alone: pull {}/{other}/… instead",
            ask.address.authority()
        );
    }
    let flags = daemons::dockerd_flags(place);
    let path = docker_file(place, ask.config);
    for (flag, key, clash) in [
        ("--registry-mirror", docker::MIRRORS, true),
        (
            "--insecure-registry",
            docker::INSECURE,
            !ask.address.is_tls() && !ask.address.is_loopback(),
        ),
    ] {
        if let Some(source) = flags.place_of(flag).filter(|_| clash) {
            bail!(
                "dockerd gets {flag} from {source}, and does not start when {} has {key} as well: take the flag \
                 away and put its value into {key}",
                path.display()
            );
        }
    }
    let mut plan = Plan::default();
    let text = before.read(&path)?;
    let after = docker::with_mirror(text.as_deref(), ask.address)
        .map_err(|problem| in_file(place, &path, &problem))?;
    plan.files.insert(path, after);
    if let Some(ca) = ask.ca {
        let folder = place.etc("docker/certs.d").join(ask.address.authority());
        plan.files.insert(folder.join("ca.crt"), ca.to_owned());
    }
    plan.notes.push(format!(
        "docker asks mirrors for Docker Hub alone; images of other registries go through pierhead as \
         `docker pull {}/ghcr.io/OWNER/IMAGE`",
        ask.address.authority()
    ));
    Ok(plan)
}

fn for_containerd(before: &Before<'_>, ask: &Ask<'_>) -> anyhow::Result<Plan> {
    let place = before.place;
    let mut plan = Plan::default();
    let main = ask
        .config
        .map_or_else(|| place.etc("containerd/config.toml"), Path::to_owned);
    let certs = config_path(before, &main, &mut plan)?;
    let ca = ask.ca.map(|_| "pierhead-ca.crt");
    let mut put = |name: &str, server: Option<&str>| -> anyhow::Result<()> {
        let folder = certs.join(name);
        let path = folder.join("hosts.toml");
        let text = before.read(&path)?;
        let after = hosts::with_host(text.as_deref(), ask.address, server, ca)
            .map_err(|problem| in_file(place, &path, &problem))?;
        plan.files.insert(path, after);
        if let (Some(name), Some(text)) = (ca, ask.ca) {
            plan.files.insert(folder.join(name), text.to_owned());
        }
        Ok(())
    };
    if ask.registries.is_empty() {
        put("_default", None)?;
        for name in place.names(&certs)? {
            let path = certs.join(&name).join("hosts.toml");
            let theirs = name != "_default" && before.read(&path)?.is_some();
            if theirs {
                plan.notes.push(format!(
                    "{} stays as it is, so {name} does not go through pierhead: `pierhead setup containerd --registry \
                     {name}` puts pierhead first there",
                    place.real(&path).display()
                ));
            }
        }
    }
    plan.notes.push(format!(
        "`ctr images pull` reads this only with --hosts-dir {}",
        certs.display()
    ));
    for registry in ask.registries {
        let server = match registry.as_str() {
            "docker.io" => "https://registry-1.docker.io".to_owned(),
            name => format!("https://{name}"),
        };
        put(registry, Some(&server))?;
    }
    Ok(plan)
}

/// A file of containerd's configuration.
pub(crate) struct ContainerdFile {
    path: PathBuf,
    text: String,
    pub(crate) says: Says,
}

/// All of them: the main file, then the imported ones in their order, the last of which wins.
pub(crate) struct ContainerdFiles {
    pub(crate) files: Vec<ContainerdFile>,
    imports: Vec<String>,
    cri_disabled: bool,
}

/// Reads them.
///
/// # Errors
/// A file that containerd would not take, with its line.
pub(crate) fn containerd_files(
    before: &Before<'_>,
    main: &Path,
) -> anyhow::Result<ContainerdFiles> {
    let place = before.place;
    let read = |path: PathBuf, text: String| -> anyhow::Result<ContainerdFile> {
        let says = containerd::read(&text).map_err(|problem| in_file(place, &path, &problem))?;
        Ok(ContainerdFile { path, text, says })
    };
    let mut files = Vec::new();
    if let Some(text) = before.read(main)? {
        files.push(read(main.to_owned(), text)?);
    }
    let of_main = files.first().map(|file| &file.says);
    let is_usual = !place.is_user() && main == place.etc("containerd/config.toml");
    let cri_disabled = of_main.is_some_and(|says| says.cri_disabled);
    let imports = match of_main.and_then(|says| says.imports.clone()) {
        Some(imports) => imports,
        // What containerd 2.2 and later import without being told, wherever their file is; so what is put there
        // would be every containerd's.
        None if is_usual && daemons::containerd_imports_by_default(place) => {
            vec![place.etc("containerd/conf.d/*.toml").display().to_string()]
        }
        None => Vec::new(),
    };
    for pattern in &imports {
        for path in expand(before, pattern)? {
            let text = before.read(&path)?.unwrap_or_default();
            files.push(read(path, text)?);
        }
    }
    Ok(ContainerdFiles {
        files,
        imports,
        cri_disabled,
    })
}

/// The folder with the hosts, and the file that has to name it.
fn config_path(before: &Before<'_>, main: &Path, plan: &mut Plan) -> anyhow::Result<PathBuf> {
    let place = before.place;
    let certs = place.etc(containerd::CERTS);
    let read = containerd_files(before, main)?;
    if read.cri_disabled {
        plan.notes.push(format!(
            "{} disables the CRI: Kubernetes does not use this containerd",
            place.real(main).display()
        ));
    }
    if let Some(folder) = read.certs() {
        return Ok(folder);
    }
    let has_section = |file: &&ContainerdFile| file.says.has_section;
    let folder = read
        .imports
        .iter()
        .find_map(|it| it.strip_suffix("/*.toml"));
    let (path, text) = match (read.files.iter().rev().find(has_section), folder) {
        (Some(file), _) => (file.path.clone(), Some(file.text.clone())),
        (None, Some(folder)) => (Path::new(folder).join(format!("{DROP_IN}.toml")), None),
        (None, None) => (main.to_owned(), before.read(main)?),
    };
    let after = containerd::with_config_path(text.as_deref(), &certs.display().to_string())
        .map_err(|problem| in_file(place, &path, &problem))?;
    plan.files.insert(path, after);
    Ok(certs)
}

/// The files of a pattern: containerd's have a star in the last part, or none.
fn expand(before: &Before<'_>, pattern: &str) -> anyhow::Result<Vec<PathBuf>> {
    let path = Path::new(pattern);
    match (path.parent(), path.file_name().and_then(|it| it.to_str())) {
        (Some(folder), Some(name)) if name.contains('*') => {
            let (start, end) = name.split_once('*').unwrap_or((name, ""));
            let mut paths = before.list(folder, end)?;
            paths.retain(|path| {
                let name = path.file_name().and_then(|it| it.to_str());
                name.is_some_and(|name| name.starts_with(start))
            });
            Ok(paths)
        }
        _ => Ok(before
            .read(path)?
            .map(|_| path.to_owned())
            .into_iter()
            .collect()),
    }
}

fn for_containers(before: &Before<'_>, ask: &Ask<'_>) -> anyhow::Result<Plan> {
    let place = before.place;
    let folder = place.etc("containers/registries.conf.d");
    let ours = folder.join(format!("{DROP_IN}.conf"));
    let mut plan = Plan::default();
    let usual: Vec<String> = containers::USUAL
        .iter()
        .map(|it| (*it).to_owned())
        .collect();
    let registries = if ask.registries.is_empty() {
        &usual
    } else {
        ask.registries
    };
    let mut others = Entries::new();
    for path in containers_files(before)? {
        if path == ours {
            continue;
        }
        let mut entries = Entries::new();
        if let Some(text) = before.read(&path)? {
            containers::read(&text, &mut entries)
                .map_err(|problem| in_file(place, &path, &problem))?;
        }
        if path > ours && path.parent() == Some(&folder) {
            for name in entries.keys().filter(|name| registries.contains(name)) {
                plan.notes.push(format!(
                    "{} is read after ours and says something else of {name}: put the mirror {}/{name} there",
                    place.real(&path).display(),
                    ask.address.authority()
                ));
            }
        }
        others.append(&mut entries);
    }
    let text = containers::drop_in(ask.address, registries, &others);
    if before.read(&ours)?.is_some_and(|found| found != text) {
        bail!(
            "{} is not as pierhead wrote it, and there is no record of it: move it away first",
            place.real(&ours).display()
        );
    }
    plan.files.insert(ours, text);
    if let Some(ca) = ask.ca {
        let folder = place
            .etc("containers/certs.d")
            .join(ask.address.authority());
        plan.files.insert(folder.join("ca.crt"), ca.to_owned());
    }
    Ok(plan)
}

/// The files that podman reads, in its order.
fn containers_files(before: &Before<'_>) -> anyhow::Result<Vec<PathBuf>> {
    let place = before.place;
    let mut paths = Vec::new();
    if place.is_user() {
        paths.push(PathBuf::from("/etc/containers/registries.conf"));
        paths.extend(before.list(Path::new("/etc/containers/registries.conf.d"), ".conf")?);
    }
    paths.push(place.etc("containers/registries.conf"));
    paths.extend(before.list(&place.etc("containers/registries.conf.d"), ".conf")?);
    Ok(paths)
}

/// The mirrors that podman and CRI-O have in effect, by registry.
///
/// # Errors
/// A file that they could not read.
pub(crate) fn containers_mirrors(place: &Place) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let before = Before {
        place,
        files: BTreeMap::new(),
    };
    let mut entries = Entries::new();
    for path in containers_files(&before)? {
        if let Some(text) = place.read(&path)? {
            containers::read(&text, &mut entries)
                .map_err(|problem| in_file(place, &path, &problem))?;
        }
    }
    Ok(containers::mirrors(&entries))
}
