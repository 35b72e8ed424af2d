//! Reads the CA certificate by which clients verify the certificate of pierhead.

use std::fs;
use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::error::{Error, IoContext as _};

/// Reads a PEM file whose first item is a certificate.
///
/// # Errors
/// Errors of the file system. [`Error::NoCertificate`] if the file has no certificate.
pub fn read_ca(path: &Path) -> Result<String, Error> {
    let text = fs::read_to_string(path).context("read", path)?;
    match CertificateDer::pem_slice_iter(text.as_bytes()).next() {
        Some(Ok(_)) => Ok(text),
        _ => Err(Error::NoCertificate {
            path: path.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_pem_certificate_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("ca.crt");
        assert!(matches!(read_ca(&path), Err(Error::Io { .. })));
        let made = rcgen::generate_simple_self_signed(["p.example".to_owned()]);
        let made = made.expect("a certificate");
        fs::write(&path, made.cert.pem()).expect("written");
        assert_eq!(read_ca(&path).expect("a certificate"), made.cert.pem());
        for text in ["", "no PEM", &made.signing_key.serialize_pem()] {
            fs::write(&path, text).expect("written");
            assert!(
                matches!(read_ca(&path), Err(Error::NoCertificate { .. })),
                "{text}"
            );
        }
    }
}
