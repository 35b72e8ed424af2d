//! Loads the configuration: merges defaults, profile, file and command line, and validates the
//! result.

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
use super::{
    Config, DefaultSources, Fault, KeyLocations, LogFormat, Problem, Size, Upstream, files, value,
};
use pierhead_host::machine::Machine;
use pierhead_host::profile::{MemoryRequest, Profile};

/// Maximum size of the configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Values of the command line, which take precedence over the file.
#[derive(Clone, Default)]
pub(crate) struct Overrides {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) data: Option<PathBuf>,
    /// The profile of `--profile`. `Some(None)` stands for `--profile none`.
    pub(crate) profile: Option<Option<&'static Profile>>,
    /// The address of `--admin`. `Some(None)` stands for `--admin off`.
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
    problems: Vec<(Fault, Problem)>,
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

impl InvalidConfig {
    /// Returns the fault that selects the exit code: of the configuration file if the file itself
    /// is invalid, else of the first invalid file that the configuration names.
    pub(crate) fn fault(&self) -> Fault {
        let mut faults = self.problems.iter().map(|(fault, _)| *fault);
        let of_text = faults.clone().find(|fault| *fault == Fault::Invalid);
        of_text.or_else(|| faults.next()).unwrap_or(Fault::Invalid)
    }
}

/// Reads and validates the configuration, and the files that it names.
pub(crate) fn load(
    file: Option<&Path>,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<Config, InvalidConfig> {
    let source = ConfigText::read(file)?;
    source.validated(overrides, None, (default_data, machine))
}

/// The two meanings that one text of the configuration has for a running pierhead.
pub(crate) struct Reloaded {
    /// The configuration that a restart would have.
    pub(crate) after_restart: Config,
    /// The same configuration, but defaults that follow from the profile and `limits.memory` use
    /// the profile and memory of the running pierhead, since a change of these keys needs a
    /// restart.
    pub(crate) without_restart: Config,
}

/// Loads the configuration for a reload of the running configuration `old`. Reads the file once, so
/// that both results come from the same text.
pub(crate) fn load_for_reload(
    old: &Config,
    file: Option<&Path>,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<Reloaded, InvalidConfig> {
    let source = ConfigText::read(file)?;
    let host = (default_data, machine);
    Ok(Reloaded {
        after_restart: source.validated(overrides, None, host)?,
        without_restart: source.validated(overrides, Some(old), host)?,
    })
}

/// The text of a configuration file, or an empty text without a file.
struct ConfigText<'a> {
    file: Option<&'a Path>,
    /// The folder at which the relative paths in the text start.
    base: PathBuf,
    text: Zeroizing<String>,
}

impl<'a> ConfigText<'a> {
    fn read(file: Option<&'a Path>) -> Result<Self, InvalidConfig> {
        let refuse = |error: FileError| InvalidConfig {
            file: file.map(Path::to_owned),
            problems: vec![error.at(None)],
        };
        let text = file.map(read).transpose().map_err(refuse)?;
        // Makes the paths absolute: the reader of the output of `config show` may have another
        // working folder.
        let absolute = file.and_then(|file| std::path::absolute(file).ok());
        let base = absolute.as_deref().or(file).and_then(Path::parent);
        Ok(Self {
            file,
            base: base.map(Path::to_owned).unwrap_or_default(),
            text: text.unwrap_or_default(),
        })
    }

    fn validated(
        &self,
        overrides: &Overrides,
        old: Option<&Config>,
        host: (&Path, &Machine),
    ) -> Result<Config, InvalidConfig> {
        validated(&self.text, (self.file, &self.base), overrides, old, host)
    }
}

/// Parses the configuration that a running pierhead prints ([`show()`](super::show())). `text` is
/// untrusted, since a process other than pierhead may listen on the admin port. So an upstream gets
/// its credentials from `file` only if `text` and `file` describe this upstream equally. Also
/// returns the upstreams that get no credentials.
pub(crate) fn load_shown(
    text: &str,
    file: &Config,
    overrides: &Overrides,
    default_data: &Path,
    machine: &Machine,
) -> Result<(Config, Vec<String>), InvalidConfig> {
    let base = Path::new("");
    let host = (default_data, machine);
    let mut config = validated(text, (None, base), overrides, None, host)?;
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
        // Drops the Docker config.json: it selects credentials by the name of the registry only, so
        // `text` could send them to any address.
        if config.docker_config.take().is_some() {
            without.push("docker_config".to_owned());
        }
    }
    Ok((config, without))
}

fn validated(
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
    let parsed = parse_with_profile(text, base, defaults, overrides, old, machine);
    let (mut config, mut lines) = parsed.map_err(refuse)?;
    let flags = apply_overrides(overrides, &mut config, &mut lines);
    // Makes the path of the data folder absolute. The log and `cache stat` print this path, and
    // their reader does not know the working folder of the daemon.
    if let Ok(data) = std::path::absolute(&config.data) {
        config.data = data;
    }
    let mut problems = with_fault_of_text(validate(&config, &lines, &flags));
    problems.extend(files::check(&config, &lines, file));
    problems.sort_by_key(|(_, problem)| problem.line);
    if problems.is_empty() {
        config.key_locations =
            KeyLocations::new(file.map(Path::to_owned), lines, flags.into_keys());
        Ok(config)
    } else {
        Err(refuse(problems))
    }
}

fn with_fault_of_text(problems: Vec<Problem>) -> Vec<(Fault, Problem)> {
    let problems = problems.into_iter();
    problems.map(|it| (Fault::Invalid, it)).collect()
}

/// Parses `text` twice: first to find its profile, then with the defaults of that profile. If `old`
/// is given, its profile and memory budget are used instead.
fn parse_with_profile(
    text: &str,
    base: &Path,
    defaults: Config,
    overrides: &Overrides,
    old: Option<&Config>,
    machine: &Machine,
) -> Result<(Config, Lines), Vec<(Fault, Problem)>> {
    let machine_problem = |message, line| vec![(Fault::Host, Problem::new(line, message))];
    let (first, lines) = parse(text, base, defaults.clone()).map_err(with_fault_of_text)?;
    let profile = overrides.profile.unwrap_or(first.profile);
    let effective = old.unwrap_or(&first);
    let request = MemoryRequest {
        profile: old.map_or(profile, |old| old.profile),
        memory: effective.limits.memory,
        tier: effective.tier.bytes_in_memory(),
    };
    let mut with_profile = defaults;
    let applied = apply_profile(&mut with_profile, request, machine);
    let sources = applied.map_err(|UnfitKey { key, message }| {
        let by_flag = key == "profile" && overrides.profile.is_some();
        // If `tier.size` has its default, the file only has the key `tier.path`.
        let fallback = if key == "tier.size" { "tier.path" } else { key };
        let line = lines.get(key).or_else(|| lines.get(fallback)).copied();
        let problem = Problem {
            flag: by_flag.then_some("--profile"),
            ..Problem::new(line, message)
        };
        vec![(Fault::Host, problem)]
    })?;
    let (mut config, lines) = parse(text, base, with_profile).map_err(with_fault_of_text)?;
    config.profile = profile;
    let is_set = |key: &str| {
        lines.contains_key(key) || key == "cache.size" && overrides.cache_size.is_some()
    };
    let sources = sources.into_iter().filter(|(key, _)| !is_set(key));
    config.default_sources = sources.collect::<DefaultSources>();
    let cores = config.limits.cores.resolve(machine);
    cores.map_err(|message| machine_problem(message, lines.get("limits.cores").copied()))?;
    Ok((config, lines))
}

fn read(path: &Path) -> Result<Zeroizing<String>, FileError> {
    let mut text = Zeroizing::new(String::new());
    let unreadable = |error: io::Error| {
        let hint = files::hint(path, &error);
        let message = format!("cannot read the configuration: {error}{hint}");
        FileError::new(Fault::MissingFile, message)
    };
    let read_error = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => FileError::new(
            Fault::Invalid,
            "the file is not UTF-8 text, so it is no configuration of pierhead",
        ),
        _ => unreadable(error),
    };
    let file = if is_descriptor(path) {
        File::open(path)
    } else {
        pierhead_atomic_file::open_regular(path)
    };
    file.map_err(unreadable)?
        .take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(read_error)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let message = "the file is larger than 1 MiB, so it is no configuration of pierhead";
        return Err(FileError::new(Fault::Invalid, message));
    }
    Ok(text)
}

/// Whether the path names an open file descriptor of this process, such as the pipe of a shell's
/// `<(…)`.
fn is_descriptor(path: &Path) -> bool {
    path == "/dev/stdin" || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd")
}

/// Checks that the file can be read a second time. A pipe would be empty at the second read, and
/// pierhead would take the empty text as a configuration with all defaults.
///
/// # Errors
/// A message for the operator.
pub(crate) fn check_rereadable(path: &Path) -> Result<(), String> {
    match is_descriptor(path) {
        true => Err(format!(
            "{} can be read only once: restart pierhead, or pass a file with --config",
            path.display()
        )),
        false => Ok(()),
    }
}

fn apply_overrides(overrides: &Overrides, config: &mut Config, lines: &mut Lines) -> Flags {
    let mut flags = Flags::new();
    let mut override_key = |key: &'static str, flag| {
        lines.remove(key);
        flags.insert(key, flag);
    };
    if overrides.profile.is_some() {
        override_key("profile", "--profile");
    }
    if !overrides.listen.is_empty() {
        override_key("listen", "--listen");
        config.listen.clone_from(&overrides.listen);
    }
    if let Some(data) = &overrides.data {
        override_key("data", "--data");
        config.data.clone_from(data);
    }
    if let Some(admin) = overrides.admin {
        override_key("admin", "--admin");
        config.admin = admin;
    }
    if let Some(size) = overrides.cache_size {
        override_key("cache.size", "--cache-size");
        config.cache.size = size;
    }
    if let Some(level) = &overrides.log_level {
        override_key("log.level", "--log");
        config.log.level.clone_from(level);
    }
    if let Some(format) = overrides.log_format {
        override_key("log.format", "--log-format");
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

/// Parses the value `NAME=URL` of `--upstream`.
pub(crate) fn parse_upstream(text: &str) -> Result<(Registry, String), String> {
    let (name, url) = text
        .split_once('=')
        .ok_or("write NAME=URL, such as docker.io=https://mirror.example")?;
    let registry = name.parse().map_err(|error| format!("{name:?}: {error}"))?;
    Ok((registry, value::parse_url(url)?))
}
