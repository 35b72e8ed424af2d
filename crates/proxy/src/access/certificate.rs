//! Verifies client certificates: checks that the configuration allows a name in the certificate,
//! and that the certificate of a resumed TLS session has not expired.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// The chain of the certificate is valid, but the configuration allows none of its names.
#[derive(Debug, thiserror::Error)]
#[error("the client's certificate has none of the names in tls.client_names")]
struct NameMismatch;

/// Lets another verifier verify the chain, then checks the names.
#[derive(Debug)]
pub(crate) struct NameVerifier {
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    /// Allowed names: common names, or alternative names of the kinds DNS, URI and e-mail.
    pub(crate) names: Vec<String>,
}

impl NameVerifier {
    fn is_allowed(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return false;
        };
        let is_allowed = |name: &str| self.names.iter().any(|allowed| allowed == name);
        // Malformed alternative names make the certificate invalid. If malformed alternative names
        // counted as absent, the common name would be used instead.
        let Ok(alternatives) = certificate.subject_alternative_name() else {
            return false;
        };
        let alternatives = alternatives
            .iter()
            .flat_map(|extension| &extension.value.general_names);
        let has_alternative_name = alternatives.clone().any(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
                is_allowed(name)
            }
            _ => false,
        });
        // The common name of a certificate is used only if there are no alternative names (RFC
        // 6125, section 6.4.4).
        let has_common_name = || {
            let mut names = certificate.subject().iter_common_name();
            names.any(|name| name.as_str().is_ok_and(is_allowed))
        };
        has_alternative_name || (alternatives.count() == 0 && has_common_name())
    }
}

impl ClientCertVerifier for NameVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .chain
            .verify_client_cert(certificate, intermediates, now)?;
        if self.is_allowed(certificate) {
            return Ok(verified);
        }
        Err(CertificateError::Other(OtherError(Arc::new(NameMismatch))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Whether these certificates are valid at this time. TLS does not verify the certificate of a
/// resumed session again, and a session ticket is valid for hours. For this reason, pierhead itself
/// refuses a resumed session whose certificate has expired.
pub(crate) fn is_current(certificates: &[CertificateDer<'_>]) -> bool {
    certificates.iter().all(|certificate| {
        X509Certificate::from_der(certificate)
            .is_ok_and(|(_, certificate)| certificate.validity().is_valid())
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    fn named(names: &[&str]) -> NameVerifier {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(|_| ())).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        NameVerifier {
            chain: chain.build().unwrap(),
            names: names.iter().map(|&name| name.to_owned()).collect(),
        }
    }

    #[test]
    fn a_name_is_allowed_only_as_a_whole() {
        let by_name = certificate(|params| {
            params.subject_alt_names =
                vec![rcgen::SanType::DnsName("node1.example".try_into().unwrap())];
            params.distinguished_name.push(DnType::CommonName, "common");
        });
        assert!(named(&["x", "node1.example"]).is_allowed(&by_name));
        for other in ["node1", "node1.example.org", "NODE1", "", "common"] {
            assert!(!named(&[other]).is_allowed(&by_name), "{other}");
        }
        let common = certificate(|params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "common");
        });
        assert!(named(&["common"]).is_allowed(&common));
        assert!(!named(&["other"]).is_allowed(&common));
        assert!(!named(&["common"]).is_allowed(&CertificateDer::from(vec![0x30])));
    }

    #[test]
    fn a_certificate_with_malformed_alternative_names_has_no_allowed_name() {
        let malformed = certificate(|params| {
            params.distinguished_name.push(DnType::CommonName, "common");
            // The test certificate has an integer where the list of alternative names belongs.
            let names = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], vec![2, 1, 7]);
            params.custom_extensions = vec![names];
        });
        assert!(X509Certificate::from_der(&malformed).is_ok());
        assert!(!named(&["common"]).is_allowed(&malformed));
    }

    #[test]
    fn an_allowed_name_does_not_replace_a_valid_chain() {
        let stranger = certificate(|params| {
            params.distinguished_name.push(DnType::CommonName, "common");
        });
        let verified = named(&["common"]).verify_client_cert(&stranger, &[], UnixTime::now());
        assert!(verified.is_err());
    }

    #[test]
    fn an_expired_certificate_is_not_current() {
        let valid = certificate(|_| ());
        let expired = certificate(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
        assert!(is_current(&[]) && is_current(std::slice::from_ref(&valid)));
        assert!(!is_current(&[valid, expired]));
    }
}
