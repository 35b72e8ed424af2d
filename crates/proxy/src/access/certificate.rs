//! Clients' certificates: beyond a chain that holds, a name that is expected and a date that has not passed.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Why a certificate that its authority vouches for is refused all the same.
#[derive(Debug, thiserror::Error)]
#[error("the client's certificate has none of the names in tls.client_names")]
struct NameMismatch;

/// Asks another verifier first, then for the name.
#[derive(Debug)]
pub(crate) struct NameVerifier {
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    /// Common names, or alternative names of the kinds DNS, URI and e-mail.
    pub(crate) names: Vec<String>,
}

impl NameVerifier {
    fn is_expected(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
            return false;
        };
        let expected = |name: &str| self.names.iter().any(|one| one == name);
        // Names that cannot be read are not the same as none: its common name does not stand in for them.
        let Ok(alternatives) = certificate.subject_alternative_name() else {
            return false;
        };
        let alternatives = alternatives
            .iter()
            .flat_map(|extension| &extension.value.general_names);
        let named = alternatives.clone().any(|name| match name {
            GeneralName::DNSName(name) | GeneralName::URI(name) | GeneralName::RFC822Name(name) => {
                expected(name)
            }
            _ => false,
        });
        // A common name counts only where there are no others (RFC 6125, section 6.4.4).
        let common = || {
            let mut names = certificate.subject().iter_common_name();
            names.any(|name| name.as_str().is_ok_and(expected))
        };
        named || (alternatives.count() == 0 && common())
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
        if self.is_expected(certificate) {
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

/// Whether the dates of these certificates include now. A resumed session is not verified again, and its
/// ticket lives for hours: this ends it when the certificate ends.
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
    fn names_are_compared_whole() {
        let by_name = certificate(|params| {
            params.subject_alt_names =
                vec![rcgen::SanType::DnsName("node1.example".try_into().unwrap())];
            params.distinguished_name.push(DnType::CommonName, "common");
        });
        assert!(named(&["x", "node1.example"]).is_expected(&by_name));
        for other in ["node1", "node1.example.org", "NODE1", "", "common"] {
            assert!(!named(&[other]).is_expected(&by_name), "{other}");
        }
        let common = certificate(|params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "common");
        });
        assert!(named(&["common"]).is_expected(&common));
        assert!(!named(&["other"]).is_expected(&common));
        assert!(!named(&["common"]).is_expected(&CertificateDer::from(vec![0x30])));
    }

    #[test]
    fn alternative_names_that_cannot_be_read_leave_no_name() {
        let odd = certificate(|params| {
            params.distinguished_name.push(DnType::CommonName, "common");
            // A number instead of the list.
            let names = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], vec![2, 1, 7]);
            params.custom_extensions = vec![names];
        });
        assert!(X509Certificate::from_der(&odd).is_ok());
        assert!(!named(&["common"]).is_expected(&odd));
    }

    #[test]
    fn the_chain_is_asked_first() {
        let stranger = certificate(|params| {
            params.distinguished_name.push(DnType::CommonName, "common");
        });
        let verified = named(&["common"]).verify_client_cert(&stranger, &[], UnixTime::now());
        assert!(verified.is_err());
    }

    #[test]
    fn a_certificate_that_has_ended_is_not_current() {
        let good = certificate(|_| ());
        let ended = certificate(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
        assert!(is_current(&[]) && is_current(std::slice::from_ref(&good)));
        assert!(!is_current(&[good, ended]));
    }
}
