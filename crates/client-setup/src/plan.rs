//! Computes the new text of each configuration file of a client from the original files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::daemon;
use crate::error::Error;
use crate::format::containerd_config::{self, RegistrySettings};
use crate::format::registries_conf::{self, RegistryEntries};
use crate::format::{daemon_json, hosts_toml};
use crate::original_files::OriginalFiles;

/// The name of pierhead's drop-ins, without the suffix.
const DROP_IN: &str = "50-pierhead";

/// The options of one setup.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The client to set up.
    pub client: Client,
    /// The address at which the client reaches pierhead.
    pub address: &'a Address,
    /// The text of a PEM file with the CA certificate of pierhead, which the client will trust.
    pub ca: Option<&'a str>,
    /// The registries that the client pulls through pierhead. An empty list stands for all
    /// registries that the client can mirror, and for podman and CRI-O for a built-in list of
    /// registries.
    pub registries: &'a [String],
    /// The absolute path of the client's main file, if that is not the default file.
    pub config: Option<&'a Path>,
}

/// The new text of each file, and notes for the user.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) files: BTreeMap<PathBuf, String>,
    pub(crate) notes: Vec<String>,
}

/// Computes the new text of each file of a client.
///
/// # Errors
/// The error names a file that the client would refuse, or that cannot be changed safely, and the
/// line.
pub(crate) fn plan(originals: &OriginalFiles<'_>, options: &Options<'_>) -> Result<Plan, Error> {
    match options.client {
        Client::Docker => for_docker(originals, options),
        Client::Containerd => for_containerd(originals, options),
        Client::Podman | Client::Crio => for_containers(originals, options),
    }
}

/// Returns the path of dockerd's configuration file: the given path, else the path in dockerd's
/// flags, else the default path.
pub(crate) fn docker_file(root: &ConfigRoot, named: Option<&Path>) -> PathBuf {
    named
        .map(Path::to_owned)
        .or_else(|| daemon::dockerd_flags(root).config_file)
        .unwrap_or_else(|| root.etc("docker/daemon.json"))
}

fn for_docker(originals: &OriginalFiles<'_>, options: &Options<'_>) -> Result<Plan, Error> {
    let root = originals.root;
    if let Some(other) = options
        .registries
        .iter()
        .find(|it| it.as_str() != "docker.io")
    {
        return Err(Error::NoMirrorForRegistry {
            registry: other.clone(),
            authority: options.address.authority().to_owned(),
        });
    }
    let flags = daemon::dockerd_flags(root);
    let path = docker_file(root, options.config);
    for (flag, key, is_needed) in [
        ("--registry-mirror", daemon_json::MIRRORS, true),
        (
            "--insecure-registry",
            daemon_json::INSECURE,
            !options.address.is_tls() && !options.address.is_loopback(),
        ),
    ] {
        if let Some(source) = flags.source_of(flag).filter(|_| is_needed) {
            return Err(Error::FlagConflict {
                flag,
                flag_source: source.to_owned(),
                path,
                key,
            });
        }
    }
    let mut plan = Plan::default();
    let text = originals.read(&path)?;
    let after = daemon_json::with_mirror(text.as_deref(), options.address)
        .map_err(|problem| problem.in_file(root.real(&path)))?;
    plan.files.insert(path, after);
    if let Some(ca) = options.ca {
        let folder = root.etc("docker/certs.d").join(options.address.authority());
        plan.files.insert(folder.join("ca.crt"), ca.to_owned());
    }
    plan.notes.push(format!(
        "docker uses mirrors for Docker Hub only; pull images of other registries through pierhead by \
         `docker pull {}/ghcr.io/OWNER/IMAGE`",
        options.address.authority()
    ));
    Ok(plan)
}

fn for_containerd(originals: &OriginalFiles<'_>, options: &Options<'_>) -> Result<Plan, Error> {
    let root = originals.root;
    let mut plan = Plan::default();
    let main = options
        .config
        .map_or_else(|| root.etc("containerd/config.toml"), Path::to_owned);
    let certs = config_path(originals, &main, &mut plan)?;
    let ca = options.ca.map(|_| "pierhead-ca.crt");
    let mut put = |name: &str, server: Option<&str>| -> Result<(), Error> {
        let folder = certs.join(name);
        let path = folder.join("hosts.toml");
        let text = originals.read(&path)?;
        let after = hosts_toml::with_host(text.as_deref(), options.address, server, ca)
            .map_err(|problem| problem.in_file(root.real(&path)))?;
        plan.files.insert(path, after);
        if let (Some(name), Some(text)) = (ca, options.ca) {
            plan.files.insert(folder.join(name), text.to_owned());
        }
        Ok(())
    };
    if options.registries.is_empty() {
        put("_default", None)?;
        for name in root.names(&certs)? {
            let path = certs.join(&name).join("hosts.toml");
            let has_hosts = name != "_default" && originals.read(&path)?.is_some();
            if has_hosts {
                plan.notes.push(format!(
                    "{} is unchanged, so pulls from {name} do not go through pierhead: `pierhead setup containerd --registry \
                     {name}` adds pierhead there",
                    root.real(&path).display()
                ));
            }
        }
    }
    plan.notes.push(format!(
        "`ctr images pull` uses pierhead only with --hosts-dir {}",
        certs.display()
    ));
    for registry in options.registries {
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
    pub(crate) settings: RegistrySettings,
}

/// All files of containerd's configuration: the main file, then the imported files in order. If
/// several files set a key, the last file wins.
pub(crate) struct ContainerdFiles {
    pub(crate) files: Vec<ContainerdFile>,
    imports: Vec<String>,
    cri_disabled: bool,
}

impl ContainerdFiles {
    /// Returns the folder of `hosts.toml` files that containerd's CRI plugin reads, as the last
    /// file that sets this folder names it.
    pub(crate) fn certs(&self) -> Option<PathBuf> {
        let certs = self
            .files
            .iter()
            .rev()
            .find_map(|file| file.settings.certs.clone());
        certs.map(|folder| Path::new(&folder).to_owned())
    }
}

/// Reads all files of containerd's configuration.
///
/// # Errors
/// The error names a file that containerd would refuse, and the line.
pub(crate) fn containerd_files(
    originals: &OriginalFiles<'_>,
    main: &Path,
) -> Result<ContainerdFiles, Error> {
    let root = originals.root;
    let read = |path: PathBuf, text: String| -> Result<ContainerdFile, Error> {
        let settings =
            containerd_config::read(&text).map_err(|problem| problem.in_file(root.real(&path)))?;
        Ok(ContainerdFile {
            path,
            text,
            settings,
        })
    };
    let mut files = Vec::new();
    if let Some(text) = originals.read(main)? {
        files.push(read(main.to_owned(), text)?);
    }
    let main_settings = files.first().map(|file| &file.settings);
    let is_default = !root.is_user() && main == root.etc("containerd/config.toml");
    let cri_disabled = main_settings.is_some_and(|settings| settings.cri_disabled);
    let imports = match main_settings.and_then(|settings| settings.imports.clone()) {
        Some(imports) => imports,
        // Since version 2.2, containerd imports this folder by default, even with another main
        // file. A drop-in file in this folder would change every containerd of the machine. So the
        // folder is used only if the main file is the default file.
        None if is_default && daemon::containerd_imports_by_default(root) => {
            vec![root.etc("containerd/conf.d/*.toml").display().to_string()]
        }
        None => Vec::new(),
    };
    for pattern in &imports {
        for path in expand(originals, pattern)? {
            let text = originals.read(&path)?.unwrap_or_default();
            files.push(read(path, text)?);
        }
    }
    Ok(ContainerdFiles {
        files,
        imports,
        cri_disabled,
    })
}

/// Returns the folder of `hosts.toml` files. If no file names a folder, adds to the plan a change
/// that names one.
fn config_path(
    originals: &OriginalFiles<'_>,
    main: &Path,
    plan: &mut Plan,
) -> Result<PathBuf, Error> {
    let root = originals.root;
    let certs = root.etc(containerd_config::DEFAULT_CERTS_DIR);
    let read = containerd_files(originals, main)?;
    if read.cri_disabled {
        plan.notes.push(format!(
            "{} disables the CRI plugin: Kubernetes cannot use this containerd",
            root.real(main).display()
        ));
    }
    if let Some(folder) = read.certs() {
        return Ok(folder);
    }
    let has_section = |file: &&ContainerdFile| file.settings.has_section;
    let folder = read
        .imports
        .iter()
        .find_map(|it| it.strip_suffix("/*.toml"));
    let (path, text) = match (read.files.iter().rev().find(has_section), folder) {
        (Some(file), _) => (file.path.clone(), Some(file.text.clone())),
        (None, Some(folder)) => (Path::new(folder).join(format!("{DROP_IN}.toml")), None),
        (None, None) => (main.to_owned(), originals.read(main)?),
    };
    let after = containerd_config::with_config_path(text.as_deref(), &certs.display().to_string())
        .map_err(|problem| problem.in_file(root.real(&path)))?;
    plan.files.insert(path, after);
    Ok(certs)
}

/// Returns the files that match an import pattern of containerd. A pattern has at most one star, in
/// its last part.
fn expand(originals: &OriginalFiles<'_>, pattern: &str) -> Result<Vec<PathBuf>, Error> {
    let path = Path::new(pattern);
    match (path.parent(), path.file_name().and_then(|it| it.to_str())) {
        (Some(folder), Some(name)) if name.contains('*') => {
            let (start, end) = name.split_once('*').unwrap_or((name, ""));
            let mut paths = originals.list(folder, end)?;
            paths.retain(|path| {
                let name = path.file_name().and_then(|it| it.to_str());
                name.is_some_and(|name| name.starts_with(start))
            });
            Ok(paths)
        }
        _ => Ok(originals
            .read(path)?
            .map(|_| path.to_owned())
            .into_iter()
            .collect()),
    }
}

fn for_containers(originals: &OriginalFiles<'_>, options: &Options<'_>) -> Result<Plan, Error> {
    let root = originals.root;
    let folder = root.etc("containers/registries.conf.d");
    let drop_in = folder.join(format!("{DROP_IN}.conf"));
    let mut plan = Plan::default();
    let well_known = registries_conf::DEFAULT_REGISTRIES.map(str::to_owned);
    let registries = if options.registries.is_empty() {
        &well_known[..]
    } else {
        options.registries
    };
    let mut others = RegistryEntries::new();
    for path in containers_files(originals)? {
        if path == drop_in {
            continue;
        }
        let mut entries = RegistryEntries::new();
        if let Some(text) = originals.read(&path)? {
            registries_conf::read(&text, &mut entries)
                .map_err(|problem| problem.in_file(root.real(&path)))?;
        }
        if path > drop_in && path.parent() == Some(&folder) {
            for name in entries.keys().filter(|name| registries.contains(name)) {
                plan.notes.push(format!(
                    "{} replaces the entry of {name} in pierhead's drop-in: add the mirror {}/{name} there",
                    root.real(&path).display(),
                    options.address.authority()
                ));
            }
        }
        others.append(&mut entries);
    }
    let text = registries_conf::drop_in(options.address, registries, &others);
    if originals.read(&drop_in)?.is_some_and(|found| found != text) {
        return Err(Error::UnknownDropIn {
            path: root.real(&drop_in),
        });
    }
    plan.files.insert(drop_in, text);
    let other = match options.client {
        Client::Crio => "podman",
        _ => "CRI-O",
    };
    plan.notes.push(format!("{other} reads this file, too"));
    if let Some(ca) = options.ca {
        let folder = root
            .etc("containers/certs.d")
            .join(options.address.authority());
        plan.files.insert(folder.join("ca.crt"), ca.to_owned());
    }
    Ok(plan)
}

/// Returns the files that podman reads, in the order in which podman reads these files.
fn containers_files(originals: &OriginalFiles<'_>) -> Result<Vec<PathBuf>, Error> {
    let root = originals.root;
    let mut paths = Vec::new();
    if root.is_user() {
        paths.push(PathBuf::from("/etc/containers/registries.conf"));
        paths.extend(originals.list(Path::new("/etc/containers/registries.conf.d"), ".conf")?);
    }
    paths.push(root.etc("containers/registries.conf"));
    paths.extend(originals.list(&root.etc("containers/registries.conf.d"), ".conf")?);
    Ok(paths)
}

/// Returns the mirrors of podman and CRI-O that are in effect, by registry.
///
/// # Errors
/// The error names a file that podman would refuse, and the line.
pub(crate) fn containers_mirrors(
    root: &ConfigRoot,
) -> Result<BTreeMap<String, Vec<String>>, Error> {
    let originals = OriginalFiles::unchanged(root);
    let mut entries = RegistryEntries::new();
    for path in containers_files(&originals)? {
        if let Some(text) = root.read(&path)? {
            registries_conf::read(&text, &mut entries)
                .map_err(|problem| problem.in_file(root.real(&path)))?;
        }
    }
    Ok(registries_conf::mirrors(&entries))
}
