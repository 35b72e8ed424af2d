//! Defaults, file and command line become one checked [`Config`].

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pierhead_oci::Registry;
use zeroize::Zeroizing;

use super::files::FileError;
use super::key_locations::Lines;
use super::parse::parse;
use super::profile::{UnfitKey, apply_profile};
use super::validate::{Flags, validate};
use super::{Config, KeyLocations, LogFormat, Origins, Problem, Size, Upstream, files, value};
use crate::exit_code::{CommandError, ExitReason};
use crate::tier;
use pierhead_host::machine::Machine;
use pierhead_host::profile::{MemoryRequest, Profile};

/// Most bytes of the configuration file.
const MAX_FILE: u64 = 1 << 20;

/// What the command line says over the file.
#[derive(Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) data: Option<PathBuf>,
    /// `Some(None)`: none.
    pub(crate) profile: Option<Option<&'static Profile>>,
    /// `Some(None)`: off.
    pub(crate) admin: Option<Option<SocketAddr>>,
    pub(crate) cache_size: Option<Size>,
    pub(crate) upstreams: Vec<(Registry, String)>,
    pub(crate) log_level: Option<String>,
    pub(crate) log_format: Option<LogFormat>,
}

/// An invalid configuration: one line per problem, each with its fix.
#[derive(Debug)]
pub(crate) struct InvalidConfig {
    file: Option<PathBuf>,
    problems: Vec<(ExitReason, Problem)>,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (_, problem)) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            if let Some(flag) = problem.flag {
                write!(f, "{flag}: {}", problem.message)?;
                continue;
            }
            match (&self.file, problem.line) {
                (Some(file), Some(line)) => {
                    write!(f, "{}:{line}: {}", file.display(), problem.message)?
                }
                (Some(file), None) => write!(f, "{}: {}", file.display(), problem.message)?,
                (None, _) => f.write_str(&problem.message)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for InvalidConfig {}

impl From<InvalidConfig> for CommandError {
    fn from(invalid: InvalidConfig) -> Self {
        Self::Message(invalid.exit(), invalid.to_string())
    }
}

impl InvalidConfig {
    /// Of the text when anything is wrong with it, else of the first file.
    pub(crate) fn exit(&self) -> ExitReason {
        let mut exits = self.problems.iter().map(|(exit, _)| *exit);
        let of_text = exits.clone().find(|exit| *exit == ExitReason::Usage);
        of_text
            .or_else(|| exits.next())
            .unwrap_or(ExitReason::Usage)
    }
}

/// Reads and checks everything, the files that the configuration names included; opens nothing else.
pub(crate) fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<Config, InvalidConfig> {
    load_by(None, file, overrides, default_data, machine)
}

/// The same for a process that runs as `old` says: what follows from a profile or a budget of memory goes on following from those of `old`,
/// whatever the text says of these, since they take a restart.
pub(crate) fn load_under(
    old: &Config,
    file: Option<&Path>,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<Config, InvalidConfig> {
    load_by(Some(old), file, overrides, default_data, machine)
}

fn load_by(
    old: Option<&Config>,
    file: Option<&Path>,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<Config, InvalidConfig> {
    let refuse = |problems| InvalidConfig {
        file: file.map(Path::to_owned),
        problems,
    };
    let text = match file {
        None => Zeroizing::default(),
        Some(path) => read(path).map_err(|unfit| refuse(vec![unfit.at(None)]))?,
    };
    // The shown configuration may be read from another folder, so its paths must be absolute.
    let absolute = file.and_then(|file| std::path::absolute(file).ok());
    let base = absolute.as_deref().or(file).and_then(Path::parent);
    let base = base.unwrap_or(Path::new(""));
    checked(&text, (file, base), overrides, old, (default_data, machine))
}

/// Parses the configuration that a running pierhead shows ([`show()`](super::show())). `text` is untrusted, since any
/// process may have the port. So upstreams get their login from `file`, and only where both describe the upstream
/// equally. Also returns the upstreams that stay without their login.
pub(crate) fn load_shown(
    text: &str,
    file: &Config,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<(Config, Vec<String>), InvalidConfig> {
    let base = Path::new("");
    let here = (default_data, machine);
    let mut config = checked(text, (None, base), overrides, None, here)?;
    config.docker_config.clone_from(&file.docker_config);
    let mut without = Vec::new();
    let none = Upstream::default();
    for (registry, upstream) in &mut config.upstreams {
        let known = file.upstreams.get(registry).unwrap_or(&none);
        if known == upstream {
            continue;
        }
        if upstream.has_credentials() || known.has_credentials() {
            without.push(format!("upstream {registry}"));
        }
        *upstream = std::mem::take(upstream).without_credentials();
        // A Docker config file has logins by registry name, whatever its address.
        if config.docker_config.take().is_some() {
            without.push("docker_config".to_owned());
        }
    }
    Ok((config, without))
}

fn checked(
    text: &str,
    (file, base): (Option<&Path>, &Path),
    overrides: &Overrides,
    old: Option<&Config>,
    (default_data, machine): (&Path, &Machine),
) -> Result<Config, InvalidConfig> {
    let refuse = |problems| InvalidConfig {
        file: file.map(Path::to_owned),
        problems,
    };
    let defaults = Config::with_data(default_data.to_owned());
    let settled = settled(text, base, defaults, overrides, old, machine);
    let (mut config, mut lines) = settled.map_err(refuse)?;
    let flags = apply(overrides, &mut config, &mut lines);
    // Log and `cache stat` name the folder to people who do not know where the daemon was started.
    if let Ok(data) = std::path::absolute(&config.data) {
        config.data = data;
    }
    let mut problems = of_text(validate(&config, &lines, &flags));
    problems.extend(files::check(&config, &lines));
    problems.sort_by_key(|(_, problem)| problem.line);
    if problems.is_empty() {
        config.key_locations = KeyLocations::new(file.map(Path::to_owned), lines);
        Ok(config)
    } else {
        Err(refuse(problems))
    }
}

fn of_text(problems: Vec<Problem>) -> Vec<(ExitReason, Problem)> {
    let problems = problems.into_iter();
    problems.map(|it| (ExitReason::Usage, it)).collect()
}

/// Reads `text` over the defaults, and over what the profile that it, or `old`, names gives these.
fn settled(
    text: &str,
    base: &Path,
    defaults: Config,
    overrides: &Overrides,
    old: Option<&Config>,
    machine: &Machine,
) -> Result<(Config, Lines), Vec<(ExitReason, Problem)>> {
    let misfit = |message, line| vec![(ExitReason::Machine, Problem::new(line, message))];
    let (first, lines) = parse(text, base, defaults.clone()).map_err(of_text)?;
    let profile = overrides.profile.unwrap_or(first.profile);
    let by = old.unwrap_or(&first);
    let request = MemoryRequest {
        profile: old.map_or(profile, |old| old.profile),
        memory: by.limits.memory,
        tier: tier::bytes_in_memory(&by.tier),
    };
    let mut settled = defaults;
    let given = apply_profile(&mut settled, request, machine);
    let origins = given.map_err(|UnfitKey { key, message }| {
        let by_flag = key == "profile" && overrides.profile.is_some();
        // The default of one key for what another asks for.
        let or = if key == "tier.size" { "tier.path" } else { key };
        let line = lines.get(key).or_else(|| lines.get(or)).copied();
        let problem = Problem {
            flag: by_flag.then_some("--profile"),
            ..Problem::new(line, message)
        };
        vec![(ExitReason::Machine, problem)]
    })?;
    let (mut config, lines) = parse(text, base, settled).map_err(of_text)?;
    config.profile = profile;
    let is_set = |key: &str| {
        lines.contains_key(key) || key == "cache.size" && overrides.cache_size.is_some()
    };
    let origins = origins.into_iter().filter(|(key, _)| !is_set(key));
    config.origins = origins.collect::<Origins>();
    let cores = config.limits.cores.resolve(machine);
    cores.map_err(|message| misfit(message, lines.get("limits.cores").copied()))?;
    Ok((config, lines))
}

fn read(path: &Path) -> Result<Zeroizing<String>, FileError> {
    let mut text = Zeroizing::new(String::new());
    let cannot = |error: io::Error| {
        if error.kind() == io::ErrorKind::InvalidData {
            return FileError::new(
                ExitReason::Usage,
                "this is no text (UTF-8), and so no configuration of pierhead",
            );
        }
        let hint = files::hint(path, &error);
        let message = format!("cannot read the configuration: {error}{hint}");
        FileError::new(ExitReason::MissingFile, message)
    };
    let file = if is_handed_over(path) {
        File::open(path)
    } else {
        pierhead_remote::open_file(path)
    };
    file.map_err(cannot)?
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(cannot)?;
    if text.len() as u64 > MAX_FILE {
        let message = "this is larger than 1 MiB and no configuration of pierhead";
        return Err(FileError::new(ExitReason::Usage, message));
    }
    Ok(text)
}

/// Whether it is a descriptor of ours, as a shell's `<(…)` is: a pipe with somebody at its other end.
fn is_handed_over(path: &Path) -> bool {
    path == "/dev/stdin" || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd")
}

/// Whether the file says the same when it is read again. A pipe is empty then, which would be all defaults.
///
/// # Errors
/// For people.
pub(crate) fn can_be_read_again(path: &Path) -> Result<(), String> {
    match is_handed_over(path) {
        true => Err(format!(
            "{} can be read only once: start anew, or name a file",
            path.display()
        )),
        false => Ok(()),
    }
}

fn apply(overrides: &Overrides, config: &mut Config, lines: &mut Lines) -> Flags {
    let mut flags = Flags::new();
    let mut overruled = |key: &'static str, flag| {
        lines.remove(key);
        flags.insert(key, flag);
    };
    if overrides.profile.is_some() {
        overruled("profile", "--profile");
    }
    if !overrides.listen.is_empty() {
        overruled("listen", "--listen");
        config.listen.clone_from(&overrides.listen);
    }
    if let Some(data) = &overrides.data {
        overruled("data", "--data");
        config.data.clone_from(data);
    }
    if let Some(admin) = overrides.admin {
        overruled("admin", "--admin");
        config.admin = admin;
    }
    if let Some(size) = overrides.cache_size {
        overruled("cache.size", "--cache-size");
        config.cache.size = size;
    }
    if let Some(level) = &overrides.log_level {
        overruled("log.level", "--log");
        config.log.level.clone_from(level);
    }
    if let Some(format) = overrides.log_format {
        overruled("log.format", "--log-format");
        config.log.format = format;
    }
    for (registry, url) in &overrides.upstreams {
        config
            .upstreams
            .entry(registry.clone())
            .or_default()
            .addresses = vec![url.clone()];
    }
    flags
}

/// `NAME=URL` of the command line.
pub(crate) fn parse_upstream(text: &str) -> Result<(Registry, String), String> {
    let (name, url) = text
        .split_once('=')
        .ok_or("write NAME=URL, such as docker.io=https://mirror.example")?;
    let registry = name.parse().map_err(|error| format!("{name:?}: {error}"))?;
    Ok((registry, value::parse_url(url)?))
}
