//! Reads and checks the files that a configuration names, such as certificates and passwords.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pierhead_atomic_file::open_regular;
use pierhead_oci::Registry;
use pierhead_remote::Credentials;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};
use zeroize::Zeroizing;

use super::key_locations::Lines;
use super::tier_file::check_tier_file;
use super::{Config, Fault, Problem, Secret, TierKind};

/// Maximum size of a file with a password or token, in bytes.
const MAX_SECRET_BYTES: u64 = 64 << 10;
/// Maximum size of the file of `docker_config`, in bytes.
const MAX_DOCKER_CONFIG_BYTES: u64 = 1 << 20;

/// The problem of a file that the configuration names, with its fix.
#[derive(Debug)]
pub(crate) struct FileError {
    fault: Fault,
    message: String,
}

impl FileError {
    pub(super) fn new(fault: Fault, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { fault, message }
    }

    /// The error of a missing or unreadable file.
    fn unreadable(what: &str, path: &Path, error: &io::Error) -> Self {
        let hint = hint(path, error);
        let message = format!("{what} {}: {error}{hint}", path.display());
        Self::new(Fault::MissingFile, message)
    }

    /// The error of a file with invalid contents.
    fn invalid(message: impl Into<String>) -> Self {
        Self::new(Fault::InvalidFile, message)
    }

    pub(crate) fn fault(&self) -> Fault {
        self.fault
    }

    pub(super) fn at(self, line: Option<usize>) -> (Fault, Problem) {
        (self.fault, Problem::new(line, self.message))
    }
}

impl From<FileError> for String {
    fn from(error: FileError) -> Self {
        error.message
    }
}

/// Checks all files that the configuration names, and returns their problems. `file` is the
/// configuration file.
pub(super) fn check(config: &Config, lines: &Lines, file: Option<&Path>) -> Vec<(Fault, Problem)> {
    let mut problems = Vec::new();
    let mut report = |key: &str, name: &str, result: Result<(), FileError>| {
        if let Err(error) = result {
            let message = format!("{name}: {}", error.message);
            problems.push(FileError { message, ..error }.at(lines.get(key).copied()));
        }
    };
    if let Some(path) = &config.tls.cert {
        report("tls.cert", "tls.cert", certificates(path).map(drop));
    }
    if let Some(path) = &config.tls.client_ca {
        report("tls.client_ca", "tls.client_ca", authorities(path));
    }
    if let Some(path) = &config.tls.key {
        report("tls.key", "tls.key", private_key(path).map(drop));
    }
    if let (Some(certificate), Some(key)) = (&config.tls.cert, &config.tls.key) {
        report("tls.key", "tls.key", key_of_certificate(certificate, key));
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
        let checked = checked.map_err(|message| FileError::new(Fault::Invalid, message));
        report("request_log.file", "request_log.file", checked);
    }
    if let Some(path) = &config.tier.path
        && config.tier.kind != TierKind::Off
    {
        let others = [
            ("the configuration file", file),
            ("tls.cert", config.tls.cert.as_deref()),
            ("tls.key", config.tls.key.as_deref()),
            ("tls.client_ca", config.tls.client_ca.as_deref()),
            ("auth.htpasswd", config.auth.htpasswd.as_deref()),
            ("docker_config", config.docker_config.as_deref()),
            ("request_log.file", config.request_log.file.as_deref()),
        ];
        let others = others
            .into_iter()
            .filter_map(|(name, path)| Some((name, path?)));
        let checked = check_tier_file(path, others);
        let checked = checked.map_err(|message| FileError::new(Fault::Invalid, message));
        report("tier.path", "tier.path", checked);
    }
    for (registry, upstream) in &config.upstreams {
        let key = format!("upstreams.{registry}");
        let name = |name: &str| format!("[upstreams.\"{registry}\"] {name}");
        if let Some(path) = &upstream.ca {
            let checked = authorities(path).map_err(|error| match error.fault {
                Fault::InvalidFile => FileError::new(Fault::Tls, error.message),
                _ => error,
            });
            report(&key, &name("ca"), checked);
        }
        if let Some(path) = &upstream.password_file {
            report(&key, &name("password_file"), first_line(path).map(drop));
        }
    }
    problems
}

/// Reads a secret, which is the first line of a file.
pub(crate) fn first_line(path: &Path) -> Result<Secret, FileError> {
    let mut text = Zeroizing::new(String::new());
    let file = open_regular(path).map_err(|error| cannot_read(path, &error))?;
    file.take(MAX_SECRET_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => FileError::invalid(format!(
                "{} is not UTF-8 text: write the password, token or address into its first line",
                path.display()
            )),
            _ => cannot_read(path, &error),
        })?;
    match text.lines().next() {
        None | Some("") => Err(FileError::invalid(format!(
            "the first line of {} is empty: write the password, token or address there (for a Secret or ConfigMap: into the \
             value of the key)",
            path.display()
        ))),
        Some(line) => Ok(Secret::new(line.to_owned())),
    }
}

fn htpasswd(path: &Path) -> Result<(), FileError> {
    open_regular(path).map_err(|error| cannot_read(path, &error))?;
    pierhead_proxy::check_htpasswd(path).map_err(FileError::invalid)
}

/// Reads the credentials of a Docker config.json, which `docker login` writes.
pub(crate) fn docker_config(path: &Path) -> Result<HashMap<Registry, Credentials>, FileError> {
    let mut bytes = Zeroizing::new(Vec::new());
    let file = open_regular(path).map_err(|error| cannot_read(path, &error))?;
    file.take(MAX_DOCKER_CONFIG_BYTES)
        .read_to_end(&mut bytes)
        .map_err(|error| cannot_read(path, &error))?;
    pierhead_remote::docker_config(&bytes)
        .map_err(|error| FileError::invalid(format!("{}: {error}", path.display())))
}

/// Whether every user of this host can read the file.
pub(crate) fn readable_by_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

/// Whether the first certificate of a PEM file is a CA certificate, which pierhead's own commands
/// do not accept as the certificate of a server.
pub(crate) fn is_authority(path: &Path) -> bool {
    with_first_certificate(path, |certificate| certificate.is_ca()).unwrap_or(false)
}

/// The advice for a CA certificate in place of a server certificate.
pub(crate) const NO_AUTHORITY: &str = "create one with basicConstraints=critical,CA:FALSE (docs/how-to/tls-and-credentials.md has the command)";

/// Returns the first host name without a wildcard in a PEM certificate.
pub(crate) fn first_name(path: &Path) -> Option<String> {
    with_first_certificate(path, |certificate| {
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

fn with_first_certificate<T>(
    path: &Path,
    read: impl FnOnce(&X509Certificate<'_>) -> T,
) -> Option<T> {
    let all = certificates(path).ok()?;
    let (_, parsed) = X509Certificate::from_der(all.first()?).ok()?;
    Some(read(&parsed))
}

/// Checks that all certificates of a PEM file are CA certificates.
fn authorities(path: &Path) -> Result<(), FileError> {
    let mut roots = RootCertStore::empty();
    let mut all = certificates(path)?.into_iter();
    all.try_for_each(|it| roots.add(it)).map_err(|error| {
        FileError::invalid(format!(
            "{} has a certificate that is not valid as a CA: {error}",
            path.display()
        ))
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let file = open_regular(path)
        .map_err(|error| FileError::unreadable("no certificate in", path, &error))?;
    let all = CertificateDer::pem_reader_iter(file).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| {
        let cause = pem(&error);
        FileError::invalid(format!("{}: {cause}", path.display()))
    })?;
    match all.is_empty() {
        true => Err(FileError::invalid(format!(
            "no certificate in {}: use a PEM file with BEGIN CERTIFICATE",
            path.display()
        ))),
        false => Ok(all),
    }
}

/// Reads the first private key of a PEM file.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    let unreadable = |error| FileError::unreadable("no private key in", path, &error);
    let mut text = Zeroizing::new(Vec::new());
    let file = open_regular(path).map_err(unreadable)?;
    file.take(MAX_SECRET_BYTES)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let shown = path.display();
        let message = match is_encrypted_key(&text) {
            true => format!(
                "the private key in {shown} is encrypted, and pierhead has no key for it: decrypt it with \
                 `openssl pkey -in {shown} -out NEW`, run `chmod 600 NEW`, and set tls.key to NEW"
            ),
            false => format!("no private key in {shown}: {}", pem(&error)),
        };
        FileError::invalid(message)
    })
}

/// Whether a PEM file has an encrypted private key: of PKCS #8, or of OpenSSL's older format, which
/// has the header `Proc-Type: 4,ENCRYPTED` (RFC 1421).
fn is_encrypted_key(text: &[u8]) -> bool {
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.any(|line| {
        line == b"-----BEGIN ENCRYPTED PRIVATE KEY-----" || line == b"Proc-Type: 4,ENCRYPTED"
    })
}

/// Checks that the private key belongs to the first certificate, and that pierhead supports its
/// type. Problems of one file alone are the task of [`certificates`] and [`private_key`].
fn key_of_certificate(certificate: &Path, key: &Path) -> Result<(), FileError> {
    let checked = pierhead_proxy::certified_key(|| {
        Ok::<_, FileError>((certificates(certificate)?, private_key(key)?))
    });
    let (certificate, key) = (certificate.display(), key.display());
    match checked {
        Err(_) | Ok(Ok(_)) => Ok(()),
        Ok(Err(rustls::Error::InconsistentKeys(_))) => Err(FileError::invalid(format!(
            "{key} is not the private key of the first certificate in {certificate}: set tls.key and tls.cert to one pair, and put \
             the certificate of the server first in its file"
        ))),
        Ok(Err(error)) => Err(FileError::invalid(format!(
            "pierhead cannot use {key} with {certificate} ({error}): use a certificate with an RSA, ECDSA or Ed25519 key"
        ))),
    }
}

fn pem(error: &rustls_pki_types::pem::Error) -> String {
    match error {
        rustls_pki_types::pem::Error::Io(error) => error.to_string(),
        rustls_pki_types::pem::Error::NoItemsFound => {
            "it has no PEM section of this kind".to_owned()
        }
        other => other.to_string(),
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> FileError {
    FileError::unreadable("cannot read", path, error)
}

/// Returns the probable cause of an unreadable file, with the fix. Recognizes the kubelet's layout
/// of Secrets and ConfigMaps: a file is a symbolic link to `..data/NAME`, and `..data` is a link to
/// the folder of the current version.
pub(super) fn hint(path: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => missing(path),
        io::ErrorKind::PermissionDenied => format!(
            " (pierhead runs as user {}, group {}: chown or chmod the file and its parent folders; for a Secret, set defaultMode \
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
            " (it is a link to {}, which does not exist: check whether the Secret or ConfigMap still has this key and is mounted completely)",
            target.display()
        ),
        (Err(_), Some(folder)) if !folder.is_dir() => format!(
            " ({} does not exist: check whether the Secret, ConfigMap or disk is mounted)",
            folder.display()
        ),
        (Err(_), Some(folder)) => format!(
            " ({} exists and has no {:?}: check the name, and the keys of the Secret)",
            folder.display(),
            path.file_name().unwrap_or_default()
        ),
        (Err(_), None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_secret_is_the_first_line_of_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let read = |content: &[u8]| {
            fs::write(&path, content).expect("written");
            first_line(&path).map(|it| it.reveal().to_string())
        };
        for (content, expected) in [
            (&b"hunter2"[..], "hunter2"),
            (b"hunter2\n", "hunter2"),
            (b"hunter2\r\n", "hunter2"),
            (b"hunter2\nmore\n", "hunter2"),
            // Spaces are part of a password.
            (b" a b \n", " a b "),
        ] {
            assert_eq!(read(content).expect("a secret"), expected);
        }
        for (content, part) in [
            (&b""[..], "the first line of "),
            (b"\nhunter2\n", "is empty"),
            (b"\xff\xfe\n", "is not UTF-8 text"),
        ] {
            let error = read(content).expect_err(part);
            assert_eq!(error.fault, Fault::InvalidFile, "{}", error.message);
            assert!(error.message.contains(part), "{}", error.message);
            assert!(!error.message.contains("hunter2"), "{}", error.message);
        }
    }

    #[test]
    fn a_missing_file_has_the_probable_cause() {
        let folder = tempfile::tempdir().expect("a folder");
        let dangling = folder.path().join("link");
        symlink("..data/password", &dangling).expect("a link");
        for (path, part) in [
            (
                dangling.clone(),
                "it is a link to ..data/password, which does not exist",
            ),
            (
                folder.path().join("none/password"),
                "check whether the Secret, ConfigMap or disk is mounted",
            ),
            (
                folder.path().join("password"),
                "exists and has no \"password\"",
            ),
        ] {
            let error = first_line(&path).err().expect(part);
            assert_eq!(error.fault, Fault::MissingFile, "{}", error.message);
            assert!(error.message.contains(part), "{}", error.message);
            assert!(
                error.message.contains(&path.display().to_string()),
                "{}",
                error.message
            );
        }
        let error = first_line(folder.path())
            .err()
            .expect("a folder is no file");
        assert_eq!(error.fault, Fault::MissingFile, "{}", error.message);
    }

    #[test]
    fn an_invalid_certificate_or_key_has_its_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file.pem");
        let pair = rcgen::generate_simple_self_signed(["a.b".to_owned()]).expect("a certificate");
        let certificate = pair.cert.pem();
        let key = pair.signing_key.serialize_pem();
        let write = |text: &str| fs::write(&path, text).expect("written");
        write(&certificate);
        assert!(certificates(&path).is_ok_and(|it| it.len() == 1));
        assert!(authorities(&path).is_ok());
        assert_eq!(first_name(&path).as_deref(), Some("a.b"));
        assert!(!is_authority(&path));
        assert!(private_key(&path).is_err(), "a certificate is no key");
        write(&key);
        assert!(private_key(&path).is_ok());
        assert!(certificates(&path).is_err(), "a key is no certificate");
        let cut: String = certificate
            .lines()
            .take(3)
            .map(|line| format!("{line}\n"))
            .collect();
        for (text, part) in [
            ("", "no certificate in"),
            ("nothing\n", "no certificate in"),
            (&*cut, "file.pem"),
        ] {
            write(text);
            let error = certificates(&path).expect_err(part);
            assert_eq!(error.fault, Fault::InvalidFile, "{}", error.message);
            assert!(error.message.contains(part), "{}", error.message);
        }
        write("nothing\n");
        let error = private_key(&path).expect_err("no key");
        assert!(
            error.message.contains("it has no PEM section"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let pair = || rcgen::generate_simple_self_signed(["a.b".to_owned()]).expect("a pair");
        let (one, other) = (pair(), pair());
        let [cert, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
        let mut config = Config::with_data("/nowhere".into());
        (config.tls.cert, config.tls.key) = (Some(cert.clone()), Some(key.clone()));
        fs::write(&cert, one.cert.pem()).expect("written");
        fs::write(&key, one.signing_key.serialize_pem()).expect("written");
        let lines = Lines::from([("tls.key".to_owned(), 7)]);
        assert!(check(&config, &lines, None).is_empty());
        fs::write(&key, other.signing_key.serialize_pem()).expect("written");
        let found = check(&config, &lines, None);
        let [(exit, problem)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!((*exit, problem.line), (Fault::InvalidFile, Some(7)));
        let text = &problem.message;
        assert!(text.contains("tls.key is not the private key of"), "{text}");
        assert!(text.contains("set tls.key and tls.cert"), "{text}");
        // With an unusable certificate, the key has no second problem.
        fs::write(&cert, "nothing").expect("written");
        assert_eq!(check(&config, &lines, None).len(), 1);
    }

    #[test]
    fn an_encrypted_key_is_named_with_the_command_that_decrypts_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("tls.key");
        for text in [
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES-128-CBC,AB\r\n\r\n\
             MIIB\r\n-----END RSA PRIVATE KEY-----\r\n",
        ] {
            fs::write(&key, text).expect("written");
            let error = private_key(&key).expect_err("encrypted");
            assert_eq!(error.fault, Fault::InvalidFile);
            let fix = format!("openssl pkey -in {}", key.display());
            for part in ["is encrypted", &*fix, "chmod 600"] {
                assert!(error.message.contains(part), "{}", error.message);
            }
        }
    }

    #[test]
    fn credentials_of_docker_are_read_and_an_invalid_file_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.json");
        fs::write(&path, r#"{"auths":{"quay.io":{"auth":"aHViOnA6dw=="}}}"#).expect("written");
        let found = docker_config(&path).expect("valid");
        let quay: Registry = "quay.io".parse().expect("a name");
        assert!(matches!(&found[&quay], Credentials::Basic { user, .. } if user == "hub"));
        fs::write(&path, "{").expect("written");
        let error = docker_config(&path).expect_err("invalid JSON");
        assert_eq!(error.fault, Fault::InvalidFile);
        assert!(error.message.contains("config.json: "), "{}", error.message);
    }

    #[test]
    fn a_secret_is_readable_by_all_only_with_that_mode() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (mode, is_readable) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("its mode");
            assert_eq!(readable_by_all(file.path()), is_readable, "{mode:o}");
        }
        assert!(!readable_by_all(Path::new("/nowhere")));
    }
}
