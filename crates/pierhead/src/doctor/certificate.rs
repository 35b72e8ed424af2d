//! The certificate that clients see: whose it is, for how long, and whether its key belongs to it.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::report::Finding;
use crate::config::{Config, files};

/// Renewal by machines happens a month before the end.
const SOON: i64 = 21 * 86_400;

/// Nothing without `tls.cert`.
pub(crate) fn look(config: &Config) -> Option<Finding> {
    let (cert, key) = (config.tls.cert.as_deref()?, config.tls.key.as_deref()?);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    Some(judge(cert, key, now).unwrap_or_else(|what| {
        Finding::fail(
            "certificate",
            what,
            "set `tls.cert` and `tls.key` to PEM files of one pair",
        )
    }))
}

fn judge(cert: &Path, key: &Path, now: i64) -> Result<Finding, String> {
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
    let renew = "renew it; pierhead takes the new file by itself";
    Ok(if now < start {
        Finding::fail(
            "certificate",
            format!("{shown} is valid only from {}", validity.not_before),
            "see the clock: `timedatectl`",
        )
    } else if now >= end {
        Finding::fail("certificate", format!("{shown} ended on {until}"), renew)
    } else if end - now < SOON {
        Finding::warn("certificate", format!("{shown} ends in {days} days"), renew)
    } else if parsed.is_ca() {
        let what = format!(
            "{shown} is that of an authority, which pierhead's own commands refuse of a server"
        );
        Finding::warn("certificate", what, files::NO_AUTHORITY)
    } else {
        Finding::ok("certificate", format!("{shown} is good for {days} days"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Level;

    #[test]
    fn the_end_and_the_key_are_seen() {
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
        let level = |key: &Path, now| judge(&cert, key, now).map(|finding| finding.level);
        // rcgen's own are valid from 1975 to 4096.
        assert_eq!(level(&key, 1_800_000_000), Ok(Level::Ok));
        assert_eq!(level(&key, 0), Ok(Level::Fail));
        assert_eq!(level(&key, 67_090_000_000), Ok(Level::Warn));
        assert_eq!(level(&key, 70_000_000_000), Ok(Level::Fail));
        let reported = judge(&cert, &wrong, 1_800_000_000).expect_err("another key");
        assert!(reported.contains("does not belong"), "{reported}");
    }

    #[test]
    fn the_certificate_of_an_authority_is_no_servers() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut about = rcgen::CertificateParams::new(["a.b".to_owned()]).expect("a name");
        about.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let made = about.self_signed(&key).expect("made");
        let [cert, private] = ["c", "k"].map(|name| folder.path().join(name));
        std::fs::write(&cert, made.pem()).expect("written");
        std::fs::write(&private, key.serialize_pem()).expect("written");
        let found = judge(&cert, &private, 1_800_000_000).expect("a pair");
        assert_eq!(found.level, Level::Warn, "{found:?}");
        assert!(found.fix.is_some_and(|fix| fix.contains("CA:FALSE")));
    }
}
