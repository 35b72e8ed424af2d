//! Whom the worker trusts, and the certificate that it shows.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::wiring;

/// How connections are made. Every authority of the system is trusted and, where one is named, those of a PEM file.
#[derive(Clone)]
pub(crate) struct Trust {
    /// To the server that was named on the command line: it sees our certificate, if there is one.
    pub(super) named: Arc<ClientConfig>,
    /// To whomever that one sends us.
    pub(super) elsewhere: Arc<ClientConfig>,
}

impl Trust {
    /// With the certificate and the key of `identity`, PEM files.
    ///
    /// # Errors
    /// For people: what is wrong with a file.
    pub(crate) fn of(ca: Option<&Path>, identity: Option<(&Path, &Path)>) -> Result<Self, String> {
        let mut roots = wiring::roots();
        for certificate in ca.map(certificates).transpose()?.unwrap_or_default() {
            let added = roots.add(certificate);
            added.map_err(|error| format!("{}: {error}", ca.unwrap_or(Path::new("")).display()))?;
        }
        let roots = Arc::new(roots);
        let start = || Ok::<_, String>(begin()?.with_root_certificates(Arc::clone(&roots)));
        let elsewhere = over_http(start()?.with_no_client_auth());
        let named = match identity {
            None => Arc::clone(&elsewhere),
            Some((certificate, key)) => {
                let shown = key.display();
                let file = open(key)?;
                let found = PrivateKeyDer::from_pem_reader(file)
                    .map_err(|error| format!("{shown} holds no private key in PEM: {error}"))?;
                let config = start()?.with_client_auth_cert(certificates(certificate)?, found);
                over_http(
                    config
                        .map_err(|error| format!("{}, {shown}: {error}", certificate.display()))?,
                )
            }
        };
        Ok(Self { named, elsewhere })
    }
}

fn begin() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
}

fn over_http(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Those of a PEM file, at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let found: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(open(path)?).collect();
    let found = found.map_err(|error| format!("{shown}: {error}"))?;
    if found.is_empty() {
        return Err(format!("{shown} holds no certificate in PEM"));
    }
    Ok(found)
}

fn open(path: &Path) -> Result<File, String> {
    pierhead_remote::open_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_shown_to_the_server_that_was_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = rcgen::generate_simple_self_signed(["worker.example".to_owned()]).expect("made");
        let [certificate, key] = ["tls.crt", "tls.key"].map(|it| folder.path().join(it));
        std::fs::write(&certificate, own.cert.pem()).expect("written");
        std::fs::write(&key, own.signing_key.serialize_pem()).expect("written");
        let shows = |config: &ClientConfig| config.client_auth_cert_resolver.has_certs();
        let with = Trust::of(None, Some((&certificate, &key))).expect("a pair");
        assert!(shows(&with.named) && !shows(&with.elsewhere));
        let without = Trust::of(None, None).expect("nothing");
        assert!(!shows(&without.named) && !shows(&without.elsewhere));
        for (certificate, key, wrong) in [
            (&certificate, &certificate, "no private key"),
            (&key, &key, "no certificate"),
            (&certificate, &folder.path().join("none"), "none: "),
        ] {
            let refused = Trust::of(None, Some((certificate, key)))
                .err()
                .expect("refused");
            assert!(refused.contains(wrong), "{refused}");
        }
    }
}
