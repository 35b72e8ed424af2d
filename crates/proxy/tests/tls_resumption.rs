//! Tests of the resumption of TLS sessions. docker and podman open a connection for each request,
//! so they resume sessions.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::sync::Arc;

use common::{Fixture, FixtureOptions, TlsFiles, eventually, in_time};
use pierhead_proxy::Auth;
use pierhead_testkit::registry::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Creates a TLS client that keeps its session tickets. With `certified`, the client has a
/// certificate.
fn new_client(
    files: &TlsFiles,
    version: &'static SupportedProtocolVersion,
    certified: bool,
) -> Client {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(files.authority.pem().as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match certified {
        false => builder.with_no_client_auth(),
        true => {
            let (certificate, key) = files.authority.issue(&["vm-1".to_owned()]);
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Client(Arc::new(config))
}

/// Creates TLS files for a server. The file `clients.pem` has the certificate authority of the
/// clients.
fn new_files() -> TlsFiles {
    let files = TlsFiles::new();
    files.write("clients.pem", files.authority.pem());
    files
}

struct Client(Arc<ClientConfig>);

impl Client {
    /// Sends one request on a new connection. Returns the kind of the handshake, and whether the
    /// status is 200.
    async fn request(&self, fixture: &Fixture) -> std::io::Result<(HandshakeKind, bool)> {
        let stream = TcpStream::connect(fixture.addr).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.0.clone());
        let mut stream = connector.connect(name, stream).await?;
        stream
            .write_all(b"GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut response = Vec::new();
        in_time(stream.read_to_end(&mut response)).await?;
        let connection = stream.get_ref().1;
        assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
        let kind = connection.handshake_kind().unwrap();
        Ok((kind, response.starts_with(b"HTTP/1.1 200")))
    }
}

const VERSIONS: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];

fn is_full(kind: HandshakeKind) -> bool {
    matches!(
        kind,
        HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest
    )
}

#[tokio::test]
async fn the_second_connection_resumes() {
    let files = new_files();
    let fixture = FixtureOptions::default().tls(files.tls(None)).start().await;
    for version in VERSIONS {
        let client = new_client(&files, version, false);
        let (kind, is_ok) = client.request(&fixture).await.unwrap();
        assert!(is_full(kind) && is_ok, "{version:?}");
        for _ in 0..3 {
            let again = client.request(&fixture).await.unwrap();
            assert_eq!(again, (HandshakeKind::Resumed, true), "{version:?}");
        }
        // A reload of the configuration keeps the tickets valid.
        fixture.reload(pierhead_proxy::Config::default());
        let again = client.request(&fixture).await.unwrap();
        assert_eq!(again, (HandshakeKind::Resumed, true), "{version:?}");
    }
}

#[tokio::test]
async fn a_resumed_session_keeps_the_client_certificate() {
    let files = new_files();
    let tls = files.tls(Some(&files.path("clients.pem")));
    let options = FixtureOptions::default()
        .tls(tls)
        .config(|config| config.auth = Auth::Certificate);
    let fixture = options.start().await;
    for version in VERSIONS {
        let client = new_client(&files, version, true);
        let (kind, is_ok) = client.request(&fixture).await.unwrap();
        assert!(is_full(kind) && is_ok, "{version:?}");
        let again = client.request(&fixture).await.unwrap();
        assert_eq!(again, (HandshakeKind::Resumed, true), "{version:?}");
        let without_certificate = new_client(&files, version, false).request(&fixture).await;
        assert!(
            !without_certificate.is_ok_and(|(_, is_ok)| is_ok),
            "{version:?}"
        );
    }
}

#[tokio::test]
async fn new_files_invalidate_old_tickets_and_new_tickets_resume() {
    let files = new_files();
    let tls = files.tls(Some(&files.path("clients.pem")));
    let fixture = FixtureOptions::default().tls(tls).start().await;
    let client = new_client(&files, VERSIONS[0], true);
    client.request(&fixture).await.unwrap();
    assert_eq!(
        client.request(&fixture).await.unwrap().0,
        HandshakeKind::Resumed
    );
    files.issue(&files.authority);
    eventually(async || {
        client
            .request(&fixture)
            .await
            .is_ok_and(|(kind, _)| is_full(kind))
    })
    .await;
    assert_eq!(
        client.request(&fixture).await.unwrap().0,
        HandshakeKind::Resumed
    );
    // After the certificate authority of clients has changed, session tickets from before the
    // change are refused.
    files.write("clients.pem", Authority::new().pem());
    eventually(async || !client.request(&fixture).await.is_ok_and(|(_, is_ok)| is_ok)).await;
}

#[tokio::test]
async fn a_client_certificate_needs_an_allowed_name() {
    let files = new_files();
    for (name, expected) in [("vm-1", true), ("vm-2", false)] {
        let mut tls = files.tls(Some(&files.path("clients.pem")));
        tls.client_names = vec!["other".to_owned(), name.to_owned()];
        let fixture = FixtureOptions::default().tls(tls).start().await;
        for version in VERSIONS {
            let response = new_client(&files, version, true).request(&fixture).await;
            assert_eq!(
                response.is_ok_and(|(_, is_ok)| is_ok),
                expected,
                "{name} {version:?}"
            );
        }
    }
}
