//! Whom the worker trusts.

use std::path::Path;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::crypto::ring::default_provider;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::wiring;

/// The system's authorities and, where one is named, those of a PEM file.
///
/// # Errors
/// For people: what is wrong with the file.
pub(crate) fn trust(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = wiring::roots();
    if let Some(path) = ca {
        let shown = path.display();
        let file = pierhead_remote::open_file(path).map_err(|error| format!("{shown}: {error}"))?;
        let mut found = 0;
        for certificate in CertificateDer::pem_reader_iter(file) {
            let added = certificate
                .map_err(|error| error.to_string())
                .and_then(|it| roots.add(it).map_err(|error| error.to_string()));
            added.map_err(|error| format!("{shown}: {error}"))?;
            found += 1;
        }
        if found == 0 {
            return Err(format!("{shown} holds no certificate in PEM"));
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
