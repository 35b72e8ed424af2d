//! A certificate authority for tests, which issues certificates for servers and clients.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate authority, which signs certificates for servers and clients. Programs that are
/// given its certificate ([`pem`](Self::pem)) trust it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Creates an authority with a new key.
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "pierhead test authority");
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Returns the certificate of the authority as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate for these host names and addresses. Returns the certificate and its
    /// key, both as PEM.
    pub fn issue(&self, names: &[String]) -> (String, String) {
        let (certificate, key) = self.sign(names, None);
        (certificate.pem(), key.serialize_pem())
    }

    fn sign(&self, names: &[String], years: Option<[i32; 2]>) -> (rcgen::Certificate, KeyPair) {
        let mut params = CertificateParams::new(names).expect("valid certificate names");
        params
            .distinguished_name
            .push(DnType::CommonName, "pierhead test");
        if let Some(years) = years {
            [params.not_before, params.not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        }
        let key = KeyPair::generate().expect("a key");
        (
            params.signed_by(&key, &self.issuer).expect("a certificate"),
            key,
        )
    }
}

/// The certificate of a server, and its TLS acceptor.
pub(super) struct Identity {
    authority: Arc<Authority>,
    pub(super) acceptor: TlsAcceptor,
}

impl Identity {
    pub(super) fn new(
        authority: Arc<Authority>,
        names: &[String],
        years: Option<[i32; 2]>,
    ) -> Self {
        let (certificate, key) = authority.sign(names, years);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("the key fits the certificate");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            authority,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    }

    pub(super) fn ca_pem(&self) -> &str {
        self.authority.pem()
    }
}
