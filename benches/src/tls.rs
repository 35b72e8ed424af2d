//! A self-signed certificate for the measured programs, and TLS clients that trust it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rustls::{ClientConfig, RootCertStore};

/// The certificate files of a server.
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Generates a self-signed certificate for `localhost`.
    pub(crate) fn generate(folder: &Path) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        fs::write(&certificate, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            certificate,
            key,
            config: Arc::new(config),
        })
    }

    /// The TLS configuration of a client, which stores its sessions.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }
}
