//! TLS sessions that are resumed: what docker and podman, which connect anew for each request, may do.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::path::Path;
use std::sync::Arc;

use pierhead_proxy::{Auth, Tls};
use pierhead_testkit::registry::Authority;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use stage::{Plan, Stage, eventually, soon};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

struct Files {
    authority: Authority,
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            authority: Authority::new(),
            folder: tempfile::tempdir().unwrap(),
        };
        files.renew();
        files.write("clients.pem", files.authority.pem());
        files
    }

    fn renew(&self) {
        let (certificate, key) = self.authority.issue(&["localhost".to_owned()]);
        self.write("key.pem", &key);
        self.write("cert.pem", &certificate);
    }

    /// As a whole, by another inode.
    fn write(&self, name: &str, pem: &str) {
        std::fs::write(self.path("next"), pem).unwrap();
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn tls(&self, client_ca: Option<&Path>) -> Tls {
        Tls {
            certificate: self.path("cert.pem"),
            key: self.path("key.pem"),
            client_ca: client_ca.map(Path::to_owned),
            client_optional: false,
            client_names: Vec::new(),
        }
    }

    /// A client that keeps its tickets.
    fn client(&self, version: &'static SupportedProtocolVersion, certified: bool) -> Client {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.authority.pem().as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match certified {
            false => builder.with_no_client_auth(),
            true => {
                let (certificate, key) = self.authority.issue(&["vm-1".to_owned()]);
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
}

struct Client(Arc<ClientConfig>);

impl Client {
    /// One connection with one request: how the handshake went, and whether the answer was 200.
    async fn ask(&self, stage: &Stage) -> std::io::Result<(HandshakeKind, bool)> {
        let stream = TcpStream::connect(stage.addr).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(self.0.clone());
        let mut stream = connector.connect(name, stream).await?;
        stream
            .write_all(b"GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await?;
        let connection = stream.get_ref().1;
        assert_eq!(connection.alpn_protocol(), Some(&b"http/1.1"[..]));
        let kind = connection.handshake_kind().unwrap();
        Ok((kind, answer.starts_with(b"HTTP/1.1 200")))
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
    let files = Files::new();
    let stage = Plan::default().tls(files.tls(None)).open().await;
    for version in VERSIONS {
        let client = files.client(version, false);
        let (kind, good) = client.ask(&stage).await.unwrap();
        assert!(is_full(kind) && good, "{version:?}");
        for _ in 0..3 {
            let again = client.ask(&stage).await.unwrap();
            assert_eq!(again, (HandshakeKind::Resumed, true), "{version:?}");
        }
        // A configuration that is read again takes no ticket from anybody.
        stage.proxy.reload(pierhead_proxy::Config::default());
        let again = client.ask(&stage).await.unwrap();
        assert_eq!(again, (HandshakeKind::Resumed, true), "{version:?}");
    }
}

#[tokio::test]
async fn a_resumed_session_still_says_who_the_client_is() {
    let files = Files::new();
    let tls = files.tls(Some(&files.path("clients.pem")));
    let plan = Plan::default()
        .tls(tls)
        .config(|config| config.auth = Auth::Certificate);
    let stage = plan.open().await;
    for version in VERSIONS {
        let client = files.client(version, true);
        let (kind, good) = client.ask(&stage).await.unwrap();
        assert!(is_full(kind) && good, "{version:?}");
        let again = client.ask(&stage).await.unwrap();
        assert_eq!(again, (HandshakeKind::Resumed, true), "{version:?}");
        let stranger = files.client(version, false).ask(&stage).await;
        assert!(!stranger.is_ok_and(|(_, good)| good), "{version:?}");
    }
}

#[tokio::test]
async fn new_files_end_old_tickets_and_new_ones_resume() {
    let files = Files::new();
    let tls = files.tls(Some(&files.path("clients.pem")));
    let stage = Plan::default().tls(tls).open().await;
    let client = files.client(VERSIONS[0], true);
    client.ask(&stage).await.unwrap();
    assert_eq!(client.ask(&stage).await.unwrap().0, HandshakeKind::Resumed);
    files.renew();
    eventually(async || {
        client
            .ask(&stage)
            .await
            .is_ok_and(|(kind, _)| is_full(kind))
    })
    .await;
    assert_eq!(client.ask(&stage).await.unwrap().0, HandshakeKind::Resumed);
    // Its authority is trusted no longer: a ticket does not help.
    files.write("clients.pem", Authority::new().pem());
    eventually(async || !client.ask(&stage).await.is_ok_and(|(_, good)| good)).await;
}

#[tokio::test]
async fn a_certificate_needs_an_expected_name() {
    let files = Files::new();
    for (name, expected) in [("vm-1", true), ("vm-2", false)] {
        let mut tls = files.tls(Some(&files.path("clients.pem")));
        tls.client_names = vec!["other".to_owned(), name.to_owned()];
        let stage = Plan::default().tls(tls).open().await;
        for version in VERSIONS {
            let answer = files.client(version, true).ask(&stage).await;
            assert_eq!(
                answer.is_ok_and(|(_, good)| good),
                expected,
                "{name} {version:?}"
            );
        }
    }
}
