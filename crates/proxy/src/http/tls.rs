//! TLS from files that may change while we serve: each change is taken up without a restart.

use std::fs::Metadata;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use pierhead_remote::open_file;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore, ServerConfig};

use crate::access::certificate::NameVerifier;
use crate::config::Tls;
use crate::error::Cause;
use crate::refusal_log::{Refusal, RefusalLog};

/// How often the files are looked at, at most; and only when a client connects.
const LOOK: Duration = Duration::from_secs(1);

/// The current configuration, kept up with the files.
pub(crate) struct ReloadingTls {
    files: Tls,
    current: ArcSwap<ServerConfig>,
    seen: Mutex<SeenFiles>,
}

struct SeenFiles {
    at: Instant,
    stamps: Vec<Option<FileStamp>>,
}

/// What changes when a file is written or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl ReloadingTls {
    /// Reads the files. Blocks.
    pub(crate) fn new(files: Tls) -> io::Result<Self> {
        // Stamps first: a file that changes in between is read again.
        let stamps = stamps(&files);
        let current = ArcSwap::from_pointee(load(&files)?);
        Ok(Self {
            files,
            current,
            seen: Mutex::new(SeenFiles {
                at: Instant::now(),
                stamps,
            }),
        })
    }

    /// The configuration for a connection that just came. Looks at the files now and then; when they do
    /// not make sense (half written, say) the old one stays in use and the log says why.
    pub(crate) async fn current(self: &Arc<Self>) -> Arc<ServerConfig> {
        if self.is_due() {
            let this = self.clone();
            let looked = tokio::task::spawn_blocking(move || this.look()).await;
            if let Err(error) = looked {
                tracing::error!(%error, "looking at the TLS files died");
            }
        }
        self.current.load_full()
    }

    fn is_due(&self) -> bool {
        let mut seen = self.seen.lock();
        let due = seen.at.elapsed() >= LOOK;
        if due {
            seen.at = Instant::now();
        }
        due
    }

    fn look(&self) {
        let stamps = stamps(&self.files);
        {
            let mut seen = self.seen.lock();
            if seen.stamps == stamps {
                return;
            }
            seen.stamps = stamps;
        }
        match load(&self.files) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                tracing::info!(certificate = %self.files.certificate.display(), "TLS files changed and were taken up");
            }
            Err(error) => {
                tracing::error!(%error, "TLS files changed but cannot be used: the old ones stay in use")
            }
        }
    }
}

/// Says in the log why a handshake failed: what an operator can mend as it is, the noise of scanners at a
/// lower level.
pub(crate) fn refused(log: &RefusalLog, address: SocketAddr, error: &io::Error) {
    let inner = error.get_ref().and_then(|error| error.downcast_ref());
    let why = match inner {
        Some(rustls::Error::NoCertificatesPresented) => {
            "the client showed no certificate, and tls.client_ca asks for one"
        }
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            CertificateError::UnknownIssuer => {
                "the client's certificate is of none of the authorities in tls.client_ca"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the client's certificate has ended"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the client's certificate is not valid yet: are both clocks right?"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "the client's certificate is not for clients (extended key usage clientAuth)"
            }
            CertificateError::Other(_) => {
                "the client's certificate has none of the names in tls.client_names"
            }
            _ => "the client's certificate is not good",
        },
        Some(rustls::Error::AlertReceived(_)) => "the client rejects the server's certificate",
        _ => return tracing::debug!(%address, %error, "TLS handshake failed"),
    };
    note(log, address, why, error);
}

/// One line for each reason and client, and the count of its repeats.
pub(crate) fn note(
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
        tracing::info!(%address, %error, "TLS handshake failed: {why}");
    }
}

fn stamps(files: &Tls) -> Vec<Option<FileStamp>> {
    let paths = [
        Some(&files.certificate),
        Some(&files.key),
        files.client_ca.as_ref(),
    ];
    let stamp = |metadata: Metadata| FileStamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    };
    paths
        .into_iter()
        .flatten()
        .map(|path| std::fs::metadata(path).ok().map(stamp))
        .collect()
}

fn load(files: &Tls) -> io::Result<ServerConfig> {
    let certificates = certificates(&files.certificate)?;
    let key = key(&files.key)?;
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
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| unusable(&files.certificate, error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Clients that connect anew for each request resume from a ticket: no state here, no key exchange anew.
    // The key of tickets is made here and not kept: whoever is no longer let in by new files has an old ticket
    // only. What has no tickets (TLS 1.2 by session ID) is remembered for 256 sessions, rustls's default.
    config.ticketer = ring::Ticketer::new().map_err(io::Error::other)?;
    Ok(config)
}

fn key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    let file = open_file(path).map_err(|error| unusable(path, error))?;
    PrivateKeyDer::from_pem_reader(file).map_err(|error| unusable(path, error))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let file = open_file(path).map_err(|error| unusable(path, error))?;
    let certificates = CertificateDer::pem_reader_iter(file)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(path, error))?;
    if certificates.is_empty() {
        return Err(unusable(path, "no certificate in it"));
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

    /// It would be waited for by all who connect.
    #[test]
    fn a_pipe_in_place_of_a_file_is_not_waited_for() {
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
