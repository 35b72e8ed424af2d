//! The files that a configuration names: read and checked before anything is opened.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use pierhead_oci::Registry;
use pierhead_remote::{Credentials, open_file};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::parse::Lines;
use super::{Config, Problem, Secret};

/// A password or token that is longer is another file.
const MAX_SECRET: u64 = 64 << 10;
/// Docker's own is a few lines a registry.
const MAX_DOCKER_CONFIG: u64 = 1 << 20;

/// What is wrong with any named file.
pub(crate) fn check(config: &Config, lines: &Lines) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |key: &str, result: Result<(), String>| {
        if let Err(message) = result {
            problems.push(Problem {
                line: lines.get(key).copied(),
                message,
            });
        }
    };
    let at = |key: &str, result: Result<(), String>| {
        result.map_err(|message| format!("{key}: {message}"))
    };
    if let Some(path) = &config.tls.cert {
        report("tls.cert", at("tls.cert", certificates(path)));
    }
    if let Some(path) = &config.tls.client_ca {
        report("tls.client_ca", at("tls.client_ca", certificates(path)));
    }
    if let Some(path) = &config.tls.key {
        report("tls.key", at("tls.key", private_key(path)));
    }
    if let Some(path) = &config.auth.htpasswd {
        let checked = pierhead_proxy::check_htpasswd(path);
        report("auth.htpasswd", at("auth.htpasswd", checked));
    }
    if let Some(path) = &config.docker_config {
        report(
            "docker_config",
            at("docker_config", docker_config(path).map(drop)),
        );
    }
    if let Some(path) = &config.trace.file {
        report("trace.file", at("trace.file", super::trace_file(path)));
    }
    for (registry, upstream) in &config.upstreams {
        let key = format!("upstreams.{registry}");
        if let Some(path) = &upstream.ca {
            report(
                &key,
                at(
                    &format!("[upstreams.\"{registry}\"] ca"),
                    certificates(path),
                ),
            );
        }
        for (name, path) in [
            ("password_file", &upstream.password_file),
            ("identity_token_file", &upstream.identity_token_file),
        ] {
            if let Some(path) = path {
                report(
                    &key,
                    at(
                        &format!("[upstreams.\"{registry}\"] {name}"),
                        first_line(path).map(drop),
                    ),
                );
            }
        }
    }
    problems
}

/// The secret in the first line of a file.
pub(crate) fn first_line(path: &Path) -> Result<Secret, String> {
    let mut text = Zeroizing::new(String::new());
    let file = open_file(path).map_err(|error| cannot_read(path, &error))?;
    file.take(MAX_SECRET)
        .read_to_string(&mut text)
        .map_err(|error| cannot_read(path, &error))?;
    match text.lines().next() {
        None | Some("") => Err(format!("the first line of {} is empty", path.display())),
        Some(line) => Ok(Secret::new(line.to_owned())),
    }
}

/// Whom to log in as, as `docker login` left it.
pub(crate) fn docker_config(path: &Path) -> Result<HashMap<Registry, Credentials>, String> {
    let mut bytes = Zeroizing::new(Vec::new());
    let file = open_file(path).map_err(|error| cannot_read(path, &error))?;
    file.take(MAX_DOCKER_CONFIG)
        .read_to_end(&mut bytes)
        .map_err(|error| cannot_read(path, &error))?;
    pierhead_remote::docker_config(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether a file that holds secrets may be read by everybody on this machine.
pub(crate) fn readable_by_all(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0)
}

fn certificates(path: &Path) -> Result<(), String> {
    let none = || {
        format!(
            "no certificate in {}: a PEM file with BEGIN CERTIFICATE is expected",
            path.display()
        )
    };
    let file = open_file(path)
        .map_err(|error| format!("no certificate in {}: {error}", path.display()))?;
    let mut count = 0;
    for certificate in CertificateDer::pem_reader_iter(file) {
        certificate.map_err(|error| format!("{}: {}", path.display(), pem(&error)))?;
        count += 1;
    }
    if count == 0 { Err(none()) } else { Ok(()) }
}

fn private_key(path: &Path) -> Result<(), String> {
    let none = |why: String| format!("no private key in {}: {why}", path.display());
    let file = open_file(path).map_err(|error| none(error.to_string()))?;
    PrivateKeyDer::from_pem_reader(file)
        .map(drop)
        .map_err(|error| none(pem(&error)))
}

fn pem(error: &rustls_pki_types::pem::Error) -> String {
    match error {
        rustls_pki_types::pem::Error::Io(error) => error.to_string(),
        rustls_pki_types::pem::Error::NoItemsFound => "nothing in PEM form in it".to_owned(),
        other => other.to_string(),
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}
