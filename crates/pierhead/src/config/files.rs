//! The files that a configuration names: read and checked before anything is opened.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pierhead_oci::Registry;
use pierhead_remote::{Credentials, open_file};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};
use zeroize::Zeroizing;

use super::key_locations::Lines;
use super::{Config, Problem, Secret};
use crate::exit_code::{ExitError, ExitReason};

/// Most bytes of a file with a password or token.
const MAX_SECRET: u64 = 64 << 10;
/// Most bytes of the file of `docker_config`.
const MAX_DOCKER_CONFIG: u64 = 1 << 20;

/// What is wrong with a file, with the exit code and the fix.
#[derive(Debug)]
pub(crate) struct FileError {
    exit: ExitReason,
    message: String,
}

impl FileError {
    pub(super) fn new(exit: ExitReason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit, message }
    }

    /// Not there, or not for us.
    fn unread(what: &str, path: &Path, error: &io::Error) -> Self {
        let hint = hint(path, error);
        let message = format!("{what} {}: {error}{hint}", path.display());
        Self::new(ExitReason::MissingFile, message)
    }

    /// There, and not what it should be.
    fn wrong(message: impl Into<String>) -> Self {
        Self::new(ExitReason::InvalidFile, message)
    }

    /// The error of a file that is named by something other than the configuration.
    pub(crate) fn into_exit_error(self, named_by: &str) -> ExitError {
        ExitError::new(self.exit, format!("{named_by}: {}", self.message))
    }

    pub(super) fn at(self, line: Option<usize>) -> (ExitReason, Problem) {
        (self.exit, Problem::new(line, self.message))
    }
}

impl From<FileError> for String {
    fn from(unfit: FileError) -> Self {
        unfit.message
    }
}

/// What is wrong with any named file.
pub(super) fn check(config: &Config, lines: &Lines) -> Vec<(ExitReason, Problem)> {
    let mut problems = Vec::new();
    let mut report = |key: &str, name: &str, result: Result<(), FileError>| {
        if let Err(unfit) = result {
            let message = format!("{name}: {}", unfit.message);
            problems.push(FileError { message, ..unfit }.at(lines.get(key).copied()));
        }
    };
    if let Some(path) = &config.tls.cert {
        report("tls.cert", "tls.cert", certificates(path).map(drop));
    }
    if let Some(path) = &config.tls.client_ca {
        report("tls.client_ca", "tls.client_ca", authorities(path));
    }
    if let Some(path) = &config.tls.key {
        report("tls.key", "tls.key", private_key(path));
    }
    if let Some(path) = &config.auth.htpasswd {
        report("auth.htpasswd", "auth.htpasswd", htpasswd(path));
    }
    if let Some(path) = &config.docker_config {
        let checked = docker_config(path).map(drop);
        report("docker_config", "docker_config", checked);
    }
    if let Some(path) = &config.request_log.file {
        let checked = super::check_request_log_file(path);
        let checked = checked.map_err(|message| FileError::new(ExitReason::Usage, message));
        report("request_log.file", "request_log.file", checked);
    }
    for (registry, upstream) in &config.upstreams {
        let key = format!("upstreams.{registry}");
        let name = |name: &str| format!("[upstreams.\"{registry}\"] {name}");
        if let Some(path) = &upstream.ca {
            let checked = authorities(path).map_err(|unfit| match unfit.exit {
                ExitReason::InvalidFile => FileError::new(ExitReason::Tls, unfit.message),
                _ => unfit,
            });
            report(&key, &name("ca"), checked);
        }
        if let Some(path) = &upstream.password_file {
            report(&key, &name("password_file"), first_line(path).map(drop));
        }
    }
    problems
}

/// The secret in the first line of a file.
pub(crate) fn first_line(path: &Path) -> Result<Secret, FileError> {
    let mut text = Zeroizing::new(String::new());
    let file = open_file(path).map_err(|error| cannot_read(path, &error))?;
    file.take(MAX_SECRET)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => FileError::wrong(format!(
                "{} is no text (UTF-8): the password, token or address belongs into its first line",
                path.display()
            )),
            _ => cannot_read(path, &error),
        })?;
    match text.lines().next() {
        None | Some("") => Err(FileError::wrong(format!(
            "the first line of {} is empty: the password, token or address belongs there (of a Secret or ConfigMap: the \
             key's value)",
            path.display()
        ))),
        Some(line) => Ok(Secret::new(line.to_owned())),
    }
}

fn htpasswd(path: &Path) -> Result<(), FileError> {
    open_file(path).map_err(|error| cannot_read(path, &error))?;
    pierhead_proxy::check_htpasswd(path).map_err(FileError::wrong)
}

/// Whom to log in as, as `docker login` left it.
pub(crate) fn docker_config(path: &Path) -> Result<HashMap<Registry, Credentials>, FileError> {
    let mut bytes = Zeroizing::new(Vec::new());
    let file = open_file(path).map_err(|error| cannot_read(path, &error))?;
    file.take(MAX_DOCKER_CONFIG)
        .read_to_end(&mut bytes)
        .map_err(|error| cannot_read(path, &error))?;
    pierhead_remote::docker_config(&bytes)
        .map_err(|error| FileError::wrong(format!("{}: {error}", path.display())))
}

/// Whether a file that holds secrets may be read by everybody on this machine.
pub(crate) fn readable_by_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

/// What a server shows, in PEM: whether it is the certificate of an authority, which pierhead's own commands refuse.
pub(crate) fn is_authority(path: &Path) -> bool {
    of_first(path, |certificate| certificate.is_ca()).unwrap_or(false)
}

/// The fix for the certificate of an authority.
pub(crate) const NO_AUTHORITY: &str = "make one with basicConstraints=critical,CA:FALSE (docs/how-to/tls-and-credentials.md has the command)";

/// The first host name of a certificate in PEM that is no pattern.
pub(crate) fn first_name(path: &Path) -> Option<String> {
    of_first(path, |certificate| {
        let names = certificate.subject_alternative_name().ok()??;
        names
            .value
            .general_names
            .iter()
            .find_map(|name| match name {
                GeneralName::DNSName(name) if !name.contains('*') => Some((*name).to_owned()),
                _ => None,
            })
    })?
}

fn of_first<T>(path: &Path, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let all = certificates(path).ok()?;
    let (_, parsed) = X509Certificate::from_der(all.first()?).ok()?;
    Some(look(&parsed))
}

/// Certificates that others can be trusted by.
fn authorities(path: &Path) -> Result<(), FileError> {
    let mut roots = RootCertStore::empty();
    let mut all = certificates(path)?.into_iter();
    all.try_for_each(|it| roots.add(it)).map_err(|error| {
        FileError::wrong(format!(
            "{} holds what is no certificate of an authority: {error}",
            path.display()
        ))
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let file =
        open_file(path).map_err(|error| FileError::unread("no certificate in", path, &error))?;
    let all = CertificateDer::pem_reader_iter(file).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| {
        let why = pem(&error);
        FileError::wrong(format!("{}: {why}", path.display()))
    })?;
    match all.is_empty() {
        true => Err(FileError::wrong(format!(
            "no certificate in {}: a PEM file with BEGIN CERTIFICATE is expected",
            path.display()
        ))),
        false => Ok(all),
    }
}

fn private_key(path: &Path) -> Result<(), FileError> {
    let file =
        open_file(path).map_err(|error| FileError::unread("no private key in", path, &error))?;
    let wrong = |error: rustls_pki_types::pem::Error| {
        FileError::wrong(format!(
            "no private key in {}: {}",
            path.display(),
            pem(&error)
        ))
    };
    PrivateKeyDer::from_pem_reader(file)
        .map(drop)
        .map_err(wrong)
}

fn pem(error: &rustls_pki_types::pem::Error) -> String {
    match error {
        rustls_pki_types::pem::Error::Io(error) => error.to_string(),
        rustls_pki_types::pem::Error::NoItemsFound => "nothing in PEM form in it".to_owned(),
        other => other.to_string(),
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> FileError {
    FileError::unread("cannot read", path, error)
}

/// Why a file cannot be read, as far as can be seen, and the fix. The kubelet's way with Secrets and ConfigMaps: a
/// name is a link to `..data/NAME`, and `..data` one to the folder of the version that is meant.
pub(super) fn hint(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => missing(path),
        io::ErrorKind::PermissionDenied => format!(
            " (this is user {}, group {}: chown or chmod the file and the folders above it; of a Secret, set defaultMode \
             and the pod's fsGroup)",
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw()
        ),
        _ => String::new(),
    }
}

fn missing(path: &Path) -> String {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    match (std::fs::read_link(path), folder) {
        (Ok(target), _) => format!(
            " (it is a link to {}, where nothing is: a Secret or ConfigMap lost this key, or its volume is not mounted whole)",
            target.display()
        ),
        (Err(_), Some(folder)) if !folder.is_dir() => format!(
            " ({} is not there: is the Secret, the ConfigMap or the disk mounted that should bring it?)",
            folder.display()
        ),
        (Err(_), Some(folder)) => format!(
            " ({} is there and has no {:?}: misspelt, or a key that the Secret lacks?)",
            folder.display(),
            path.file_name().unwrap_or_default()
        ),
        (Err(_), None) => String::new(),
    }
}
