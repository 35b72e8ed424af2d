//! TLS settings of a worker: the trusted certificate authorities and the client certificate.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::default_provider;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;

/// TLS settings for the server that the user named, and for the servers to which it redirects.
#[derive(Clone)]
pub struct TlsConfigs {
    pair: Arc<LazyLock<ConfigPair, BuildPair>>,
    is_anonymous: bool,
}

type BuildPair = Box<dyn FnOnce() -> ConfigPair + Send>;

struct ConfigPair {
    /// The settings for the server that the user named, with the client certificate if there is
    /// one.
    named: Arc<ClientConfig>,
    /// The settings for targets of redirects, without a client certificate.
    redirects: Arc<ClientConfig>,
}

impl TlsConfigs {
    /// Creates settings that trust the certificates of `roots` and of the PEM file `ca`. `identity`
    /// contains the PEM files of the client certificate and its key.
    ///
    /// This call reads the PEM files. The first TLS connection calls `roots`, because parsing the
    /// certificates of a system takes more CPU time than a request over plain HTTP.
    ///
    /// # Errors
    /// [`Error::Usage`] with the file and the reason.
    pub fn new(
        roots: impl FnOnce() -> RootCertStore + Send + 'static,
        ca: Option<&Path>,
        identity: Option<(&Path, &Path)>,
    ) -> Result<Self, Error> {
        let pair = prepare(roots, ca, identity).map_err(Error::Usage)?;
        Ok(Self {
            pair: Arc::new(LazyLock::new(pair)),
            is_anonymous: false,
        })
    }

    /// Returns the settings for the server that the user named, or for targets of redirects if this
    /// value is [`anonymous`](Self::anonymous).
    pub(super) fn current(&self) -> &Arc<ClientConfig> {
        match self.is_anonymous {
            false => &self.pair.named,
            true => &self.pair.redirects,
        }
    }

    /// Returns settings with the same trusted certificates, but without the client certificate, for
    /// targets of redirects.
    pub(super) fn anonymous(&self) -> Self {
        Self {
            pair: Arc::clone(&self.pair),
            is_anonymous: true,
        }
    }
}

/// Reads and checks the PEM files, so that the returned function cannot fail.
fn prepare(
    roots: impl FnOnce() -> RootCertStore + Send + 'static,
    ca: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<BuildPair, String> {
    let mut named_roots = RootCertStore::empty();
    for certificate in ca.map(certificates).transpose()?.unwrap_or_default() {
        let added = named_roots.add(certificate);
        added.map_err(|error| format!("{}: {error}", ca.unwrap_or(Path::new("")).display()))?;
    }
    let resolver = identity
        .map(|(certificate, key)| client_certificate(certificate, key))
        .transpose()?;
    let builder = builder()?;
    Ok(Box::new(move || {
        let mut roots = roots();
        roots.extend(named_roots.roots);
        let builder = builder.with_root_certificates(roots);
        let redirects = with_http1_alpn(builder.clone().with_no_client_auth());
        let named = match resolver {
            None => Arc::clone(&redirects),
            Some(resolver) => with_http1_alpn(builder.with_client_cert_resolver(resolver)),
        };
        ConfigPair { named, redirects }
    }))
}

fn client_certificate(
    certificate: &Path,
    key: &Path,
) -> Result<Arc<dyn ResolvesClientCert>, String> {
    let shown = key.display();
    let found = PrivateKeyDer::from_pem_reader(open(key)?)
        .map_err(|error| format!("{shown} holds no private key in PEM: {error}"))?;
    let pair = CertifiedKey::from_der(certificates(certificate)?, found, &default_provider())
        .map_err(|error| format!("{}, {shown}: {error}", certificate.display()))?;
    Ok(Arc::new(SingleCertAndKey::from(pair)))
}

fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())
}

fn with_http1_alpn(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Reads the certificates of a PEM file. A file without a certificate is an error.
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
    pierhead_atomic_file::open_regular(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_server_gets_the_client_certificate() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = rcgen::generate_simple_self_signed(["worker.example".to_owned()]).expect("made");
        let [certificate, key] = ["tls.crt", "tls.key"].map(|it| folder.path().join(it));
        std::fs::write(&certificate, own.cert.pem()).expect("written");
        std::fs::write(&key, own.signing_key.serialize_pem()).expect("written");
        let shows = |config: &ClientConfig| config.client_auth_cert_resolver.has_certs();
        let with = TlsConfigs::new(RootCertStore::empty, None, Some((&certificate, &key)))
            .expect("a pair");
        assert!(shows(with.current()) && !shows(with.anonymous().current()));
        let without = TlsConfigs::new(RootCertStore::empty, None, None).expect("nothing");
        assert!(!shows(without.current()) && !shows(without.anonymous().current()));
        for (certificate, key, wrong) in [
            (&certificate, &certificate, "no private key"),
            (&key, &key, "no certificate"),
            (&certificate, &folder.path().join("none"), "none: "),
        ] {
            let refused = TlsConfigs::new(RootCertStore::empty, None, Some((certificate, key)))
                .err()
                .expect("refused")
                .to_string();
            assert!(refused.contains(wrong), "{refused}");
        }
    }
}
