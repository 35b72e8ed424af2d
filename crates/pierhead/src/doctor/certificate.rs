//! Checks the TLS certificate of the daemon (`tls.cert`): its validity period, its private key, and
//! that the certificate is not a CA certificate.

use std::path::Path;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::report::Finding;
use crate::config::{Config, files};
use pierhead_host::clock;

/// Remaining validity in seconds below which the check warns. Automatic renewal usually happens 30
/// days before the certificate expires.
const EXPIRY_WARNING: i64 = 21 * 86_400;

/// Checks the files of `tls.cert` and `tls.key`. Returns `None` if these keys are not set.
pub(crate) fn check(config: &Config) -> Option<Finding> {
    let (cert, key) = (config.tls.cert.as_deref()?, config.tls.key.as_deref()?);
    let now = i64::try_from(clock::since_epoch().as_secs()).unwrap_or(i64::MAX);
    Some(check_pair(cert, key, now).unwrap_or_else(|what| {
        Finding::fail(
            "certificate",
            what,
            "set `tls.cert` and `tls.key` to the PEM files of a certificate and its private key",
        )
    }))
}

fn check_pair(cert: &Path, key: &Path, now: i64) -> Result<Finding, String> {
    let shown = cert.display();
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{shown}: {error}"))?;
    let first = chain
        .first()
        .ok_or_else(|| format!("{shown} holds no certificate"))?;
    let (_, parsed) =
        X509Certificate::from_der(first).map_err(|error| format!("{shown}: {error}"))?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    let provider = rustls::crypto::ring::default_provider();
    let private = provider
        .key_provider
        .load_private_key(private)
        .map_err(|error| format!("{}: {error}", key.display()))?;
    rustls::sign::CertifiedKey::new(chain.clone(), private)
        .keys_match()
        .map_err(|error| format!("{} does not belong to {shown}: {error}", key.display()))?;
    let validity = parsed.validity();
    let (start, end) = (
        validity.not_before.timestamp(),
        validity.not_after.timestamp(),
    );
    let days = (end - now) / 86_400;
    let until = validity.not_after;
    let renew = "renew it; pierhead reads the new file without a restart";
    Ok(if now < start {
        Finding::fail(
            "certificate",
            format!("{shown} is valid only from {}", validity.not_before),
            "check the clock: `timedatectl`",
        )
    } else if now >= end {
        Finding::fail("certificate", format!("{shown} expired on {until}"), renew)
    } else if end - now < EXPIRY_WARNING {
        Finding::warn(
            "certificate",
            format!("{shown} expires in {days} days"),
            renew,
        )
    } else if parsed.is_ca() {
        let what = format!(
            "{shown} is a CA certificate, which pierhead's own commands refuse as a server certificate"
        );
        Finding::warn("certificate", what, files::NO_AUTHORITY)
    } else {
        Finding::ok("certificate", format!("{shown} is valid for {days} days"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Severity;

    #[test]
    fn expiry_and_a_wrong_key_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("written");
            path
        };
        let pair = rcgen::generate_simple_self_signed(["a.b".to_owned()]).expect("a pair");
        let other = rcgen::generate_simple_self_signed(["a.b".to_owned()]).expect("a pair");
        let cert = write("c", pair.cert.pem());
        let key = write("k", pair.signing_key.serialize_pem());
        let wrong = write("w", other.signing_key.serialize_pem());
        let level = |key: &Path, now| check_pair(&cert, key, now).map(|finding| finding.level);
        // The certificates that the crate `rcgen` makes are valid from 1975 to 4096.
        assert_eq!(level(&key, 1_800_000_000), Ok(Severity::Ok));
        assert_eq!(level(&key, 0), Ok(Severity::Fail));
        assert_eq!(level(&key, 67_090_000_000), Ok(Severity::Warn));
        assert_eq!(level(&key, 70_000_000_000), Ok(Severity::Fail));
        let problem = check_pair(&cert, &wrong, 1_800_000_000).expect_err("another key");
        assert!(problem.contains("does not belong"), "{problem}");
    }

    #[test]
    fn a_ca_certificate_as_server_certificate_is_a_warning() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(["a.b".to_owned()]).expect("a name");
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).expect("made");
        let [cert, private] = ["c", "k"].map(|name| folder.path().join(name));
        std::fs::write(&cert, certificate.pem()).expect("written");
        std::fs::write(&private, key.serialize_pem()).expect("written");
        let found = check_pair(&cert, &private, 1_800_000_000).expect("a pair");
        assert_eq!(found.level, Severity::Warn, "{found:?}");
        assert!(found.fix.is_some_and(|fix| fix.contains("CA:FALSE")));
    }
}
