//! Loads the TLS configuration of the listener from files. pierhead applies changes of the files
//! without a restart.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pierhead_atomic_file::open_regular;
use pierhead_remote::FileStamp;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, RootCertStore, ServerConfig};

use crate::access::certificate::NameVerifier;
use crate::config::Tls;
use crate::error::Cause;
use crate::refusal_log::{Refusal, RefusalLog};

/// Minimum interval between two checks of whether the TLS files changed. Only a new connection
/// starts a check.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A certificate chain and a private key, as they were read from files.
type CertificateAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Holds the TLS configuration that was loaded last, and loads changed files.
pub(crate) struct ReloadingTls {
    files: Tls,
    current: ArcSwap<ServerConfig>,
    last_check: Mutex<FileCheck>,
}

struct FileCheck {
    at: Instant,
    stamps: Vec<Option<FileStamp>>,
}

impl ReloadingTls {
    /// Reads the TLS files. Blocks.
    pub(crate) fn new(files: Tls) -> io::Result<Self> {
        // The stamps are read before `load`, so that a file that changes during the load is loaded
        // again at the next check.
        let stamps = stamps(&files);
        let current = ArcSwap::from_pointee(load(&files)?);
        Ok(Self {
            files,
            current,
            last_check: Mutex::new(FileCheck {
                at: Instant::now(),
                stamps,
            }),
        })
    }

    /// Returns the configuration for a new connection. First loads changed files, if a check of the
    /// files is due. If the files are unusable (for example half written), the previous
    /// configuration stays in use, and pierhead logs the error.
    pub(crate) async fn current(self: &Arc<Self>) -> Arc<ServerConfig> {
        if self.take_check() {
            let this = self.clone();
            let checked = tokio::task::spawn_blocking(move || this.check_files()).await;
            if let Err(error) = checked {
                tracing::error!(%error, "the check of the TLS files panicked");
            }
        }
        self.current.load_full()
    }

    /// Whether a check of the TLS files is due. Only one caller gets `true`, and must do the check.
    fn take_check(&self) -> bool {
        let mut last_check = self.last_check.lock();
        let is_due = last_check.at.elapsed() >= FILE_CHECK_INTERVAL;
        if is_due {
            last_check.at = Instant::now();
        }
        is_due
    }

    /// Loads the TLS files again if they changed.
    fn check_files(&self) {
        let stamps = stamps(&self.files);
        {
            let mut last_check = self.last_check.lock();
            if last_check.stamps == stamps {
                return;
            }
            last_check.stamps = stamps;
        }
        match load(&self.files) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!(certificate = %self.files.certificate.display(), "TLS files changed");
            }
            Err(error) => {
                tracing::error!(%error, "TLS files changed but are unusable: the previous ones stay in use")
            }
        }
    }
}

/// Logs why a handshake failed. Failures that an operator can fix have level info; other failures
/// (such as those that port scanners cause) have level debug.
pub(crate) fn log_error(log: &RefusalLog, address: SocketAddr, error: &io::Error) {
    let inner = error.get_ref().and_then(|error| error.downcast_ref());
    let why = match inner {
        Some(rustls::Error::NoCertificatesPresented) => {
            "the client presented no certificate, and tls.client_ca requires one"
        }
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer => {
                "no authority in tls.client_ca issued the client's certificate"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the client's certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the client's certificate is not valid yet: check both clocks"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the client's certificate is not for clients (extended key usage clientAuth)"
            }
            CertificateError::Other(_) => {
                "the client's certificate has none of the names in tls.client_names"
            }
            _ => "the client's certificate is invalid",
        },
        Some(rustls::Error::AlertReceived(_)) => "the client rejects the server's certificate",
        Some(rustls::Error::InvalidMessage(_)) => {
            "the client does not speak TLS: it must use an address with https://"
        }
        _ => {
            let client = address.ip();
            return tracing::debug!(%client, %error, "TLS handshake failed");
        }
    };
    log_failure(log, address, why, error);
}

/// Logs a failed handshake once for each reason and client, and counts the repetitions.
pub(crate) fn log_failure(
    log: &RefusalLog,
    address: SocketAddr,
    why: &'static str,
    error: &impl fmt::Display,
) {
    let refusal = Refusal {
        event: "TLS handshake failed",
        cause: Cause::Text(why),
        client: Some(address.ip()),
        registry: None,
    };
    if log.is_new(&refusal, (), &why) {
        let client = address.ip();
        tracing::info!(%client, %error, "TLS handshake failed: {why}");
    }
}

fn stamps(files: &Tls) -> Vec<Option<FileStamp>> {
    let paths = [
        Some(&files.certificate),
        Some(&files.key),
        files.client_ca.as_ref(),
    ];
    paths
        .into_iter()
        .flatten()
        .map(|path| FileStamp::read(path))
        .collect()
}

fn load(files: &Tls) -> io::Result<ServerConfig> {
    let pair = certified_key(|| {
        Ok::<_, io::Error>((certificates(&files.certificate)?, key(&files.key)?))
    })?
    .map_err(|error| unusable(&files.certificate, error))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for authority in self::certificates(path)? {
                roots
                    .add(authority)
                    .map_err(|error| unusable(path, error))?;
            }
            let mut verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            if files.client_optional {
                verifier = verifier.allow_unauthenticated();
            }
            let chain = verifier.build().map_err(|error| unusable(path, error))?;
            let names = files.client_names.clone();
            builder.with_client_cert_verifier(match names.is_empty() {
                true => chain,
                false => Arc::new(NameVerifier { chain, names }),
            })
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Clients that open a connection for each request resume their session by a ticket, without
    // state on the server and without a key exchange. The ticket key changes with the TLS files, so
    // tickets of clients that are no longer allowed become invalid. For TLS 1.2, rustls also
    // remembers 256 sessions by session ID, which is its default.
    config.ticketer = ring::Ticketer::new().map_err(io::Error::other)?;
    Ok(config)
}

/// Reads a certificate chain and a private key by `read`, and checks that they belong together.
///
/// A renewal replaces two files, one after the other, so `read` can return a new certificate with
/// the old key, or the reverse. Therefore a pair that does not match is read once more, at once.
/// This helps only if the renewal has ended by then. If it takes longer, a start or a reload fails,
/// while a running server keeps its pair and reads the files again when they change.
pub fn certified_key<E>(
    mut read: impl FnMut() -> Result<CertificateAndKey, E>,
) -> Result<Result<CertifiedKey, rustls::Error>, E> {
    let provider = ring::default_provider();
    let mut check = || {
        let (certificates, key) = read()?;
        Ok(CertifiedKey::from_der(certificates, key, &provider))
    };
    match check()? {
        Err(rustls::Error::InconsistentKeys(_)) => check(),
        result => Ok(result),
    }
}

fn key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    let file = open_regular(path).map_err(|error| unusable(path, error))?;
    PrivateKeyDer::from_pem_reader(file).map_err(|error| unusable(path, error))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let file = open_regular(path).map_err(|error| unusable(path, error))?;
    let certificates = CertificateDer::pem_reader_iter(file)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(path, error))?;
    if certificates.is_empty() {
        return Err(unusable(path, "it contains no certificate"));
    }
    Ok(certificates)
}

fn unusable(path: &Path, why: impl std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: {why}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> CertificateAndKey {
        let pair = rcgen::generate_simple_self_signed(["a.b".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der()).unwrap();
        (vec![pair.cert.into()], key)
    }

    #[test]
    fn a_renewal_between_the_reads_of_certificate_and_key_is_no_error() {
        let (old, new) = (pair(), pair());
        let torn = || (old.0.clone(), new.1.clone_key());
        let whole = || (new.0.clone(), new.1.clone_key());
        let checked = |reads: Vec<CertificateAndKey>| {
            let mut reads = reads.into_iter();
            certified_key(|| reads.next().ok_or("no third read")).unwrap()
        };
        assert!(checked(vec![whole()]).is_ok());
        assert_eq!(checked(vec![torn(), whole()]).unwrap().cert, new.0);
        let error = checked(vec![torn(), torn(), whole()]).unwrap_err();
        assert!(
            matches!(error, rustls::Error::InconsistentKeys(_)),
            "{error}"
        );
    }

    /// pierhead must refuse a pipe in place of a TLS file: a read from the pipe would block all new
    /// connections.
    #[test]
    fn a_pipe_in_place_of_a_file_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        let error = certificates(&pipe).unwrap_err().to_string();
        assert!(error.contains("a pipe"), "{error}");
        let error = key(&pipe).unwrap_err().to_string();
        assert!(error.contains("a pipe"), "{error}");
    }
}
