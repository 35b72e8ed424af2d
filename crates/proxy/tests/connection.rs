//! Connections: TLS, HTTP/2, limits, clients that stall, the drain.
#![allow(clippy::unwrap_used, reason = "what a test cannot set up fails it")]

mod stage;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pierhead_proxy::Tls;
use pierhead_testkit::http::{Connection, End, Request};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::registry::{Authority, Fault, Gate};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use stage::{Plan, Stage, blob_path, code, eventually, from, metric, soon};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What a TLS client says first, as far as a plain HTTP server looks at it.
const CLIENT_HELLO: [u8; 48] = {
    let mut hello = [b'x'; 48];
    (hello[0], hello[1], hello[2], hello[3], hello[4], hello[5]) = (0x16, 3, 1, 0, 43, 1);
    hello
};

#[tokio::test]
async fn tls_on_a_plain_port_is_answered_in_http() {
    let stage = Stage::open().await;
    let mut stream = TcpStream::connect(stage.addr).await.unwrap();
    stream.write_all(&CLIENT_HELLO).await.unwrap();
    let mut answer = [0; 5];
    soon(stream.read_exact(&mut answer)).await.unwrap();
    assert_eq!(
        &answer, b"HTTP/",
        "dockerd falls back to plain HTTP only then"
    );
}

struct Identity {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl Identity {
    fn new() -> Self {
        let identity = Self {
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new(),
        };
        identity.issue(&identity.authority);
        identity
    }

    fn issue(&self, authority: &Authority) {
        let (certificate, key) = authority.issue(&["localhost".to_owned()]);
        // As people and certbot do it: written aside, then renamed.
        for (name, pem) in [("key.pem", key), ("cert.pem", certificate)] {
            let aside = self.path("aside");
            std::fs::write(&aside, pem).unwrap();
            std::fs::rename(aside, self.path(name)).unwrap();
        }
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
}

async fn over_tls(stage: &Stage, ca_pem: &str) -> std::io::Result<u16> {
    let mut connection = soon(Connection::open_tls(stage.addr, "localhost", ca_pem)).await?;
    Ok(soon(connection.exchange(&Request::get("/v2/")))
        .await?
        .status)
}

#[tokio::test]
async fn a_certificate_is_taken_up_when_it_changes() {
    let identity = Identity::new();
    let stage = Plan::default().tls(identity.tls(None)).open().await;
    let mut kept = Connection::open_tls(stage.addr, "localhost", identity.authority.pem())
        .await
        .unwrap();
    assert_eq!(
        over_tls(&stage, identity.authority.pem()).await.unwrap(),
        200
    );
    // What cannot be used changes nothing.
    std::fs::write(identity.path("cert.pem"), "half a certif").unwrap();
    let other = Authority::new();
    assert!(over_tls(&stage, other.pem()).await.is_err());
    assert_eq!(
        over_tls(&stage, identity.authority.pem()).await.unwrap(),
        200
    );
    identity.issue(&other);
    eventually(async || over_tls(&stage, other.pem()).await.is_ok()).await;
    assert!(over_tls(&stage, identity.authority.pem()).await.is_err());
    let status = soon(kept.exchange(&Request::get("/v2/")))
        .await
        .unwrap()
        .status;
    assert_eq!(status, 200, "connections under way are not touched");
}

#[tokio::test]
async fn plain_text_on_a_tls_port_is_closed() {
    let identity = Identity::new();
    let stage = Plan::default().tls(identity.tls(None)).open().await;
    let mut stream = TcpStream::connect(stage.addr).await.unwrap();
    stream
        .write_all(b"GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = soon(stream.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn tls_files_that_cannot_be_used_are_named() {
    let identity = Identity::new();
    std::fs::write(identity.path("key.pem"), "no key").unwrap();
    let mut stage = Plan::default().tls(identity.tls(None)).open().await;
    let error = soon(stage.stop()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("key.pem"), "{error}");
}

fn client(ca_pem: &str, own: Option<(&str, &str)>, alpn: &[u8]) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certificates =
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(certificates, key).unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config
}

async fn connect(
    stage: &Stage,
    config: rustls::ClientConfig,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(stage.addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn clients_must_show_a_certificate_when_told_so() {
    let (identity, clients) = (Identity::new(), Authority::new());
    let client_ca = identity.path("clients.pem");
    std::fs::write(&client_ca, clients.pem()).unwrap();
    let stage = Plan::default()
        .tls(identity.tls(Some(&client_ca)))
        .open()
        .await;
    assert!(
        over_tls(&stage, identity.authority.pem()).await.is_err(),
        "none shown"
    );
    let ask = async |own: (String, String)| {
        let config = client(
            identity.authority.pem(),
            Some((&own.0, &own.1)),
            b"http/1.1",
        );
        let mut stream = connect(&stage, config).await?;
        stream
            .write_all(b"GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        soon(stream.read_to_end(&mut answer)).await?;
        Ok::<_, std::io::Error>(answer.starts_with(b"HTTP/1.1 200"))
    };
    assert!(ask(clients.issue(&["vm-1".to_owned()])).await.unwrap());
    let stranger = ask(Authority::new().issue(&["vm-1".to_owned()])).await;
    assert!(!stranger.unwrap_or(false));
}

type Sender = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Sender {
    let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream));
    let (sender, connection) = soon(handshake).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(path: &str) -> hyper::Request<Empty<Bytes>> {
    hyper::Request::get(format!("http://localhost{path}"))
        .body(Empty::new())
        .unwrap()
}

#[tokio::test]
async fn http2_with_and_without_tls() {
    let identity = Identity::new();
    let secure = Plan::default().tls(identity.tls(None)).open().await;
    let stream = connect(&secure, client(identity.authority.pem(), None, b"h2"))
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let plain = Stage::open().await;
    let over_plain = http2(TcpStream::connect(plain.addr).await.unwrap()).await;
    for (stage, mut sender) in [(&secure, http2(stream).await), (&plain, over_plain)] {
        let image = stage.push(1, &[3_000_000, 400_000]);
        let blobs = image
            .blobs
            .iter()
            .map(|blob| sender.send_request(request(&blob_path(&blob.digest))))
            .collect::<Vec<_>>();
        for (answer, blob) in blobs.into_iter().zip(&image.blobs) {
            let answer = soon(answer).await.unwrap();
            assert_eq!(
                answer.headers()["docker-content-digest"],
                blob.digest.to_string()
            );
            let body = soon(answer.into_body().collect()).await.unwrap().to_bytes();
            assert!(body == blob.bytes);
        }
        let mut head = request("/v2/app/manifests/1");
        *head.method_mut() = hyper::Method::HEAD;
        let head = soon(sender.send_request(head)).await.unwrap();
        let size = image.root_document().bytes.len().to_string();
        assert_eq!(
            (
                head.status().as_u16(),
                head.headers()["content-length"].to_str().unwrap()
            ),
            (200, &*size)
        );
    }
}

#[tokio::test]
async fn a_wrong_body_over_http2_is_reset() {
    let stage = Stage::open().await;
    let digest = stage.upstream.put_blob("app", random_bytes(2, 2_000_000));
    stage.upstream.inject(Fault::Corrupt(9).on_blob(&digest));
    let mut sender = http2(TcpStream::connect(stage.addr).await.unwrap()).await;
    let answer = soon(sender.send_request(request(&blob_path(&digest))))
        .await
        .unwrap();
    assert!(
        soon(answer.into_body().collect()).await.is_err(),
        "no clean end"
    );
}

#[tokio::test]
async fn over_the_limit_of_connections_it_is_503() {
    let stage = Plan::default()
        .config(|config| config.max_connections = 2)
        .open()
        .await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(stage.addr).await.unwrap();
        assert_eq!(
            soon(connection.exchange(&Request::get("/v2/")))
                .await
                .unwrap()
                .status,
            200
        );
        kept.push(connection);
    }
    let mut third = Connection::open(stage.addr).await.unwrap();
    let refused = soon(third.exchange(&Request::get("/v2/"))).await.unwrap();
    assert_eq!(
        (
            refused.status,
            refused.header("retry-after"),
            &*code(&refused)
        ),
        (503, Some("1"), "UNAVAILABLE")
    );
    assert!(soon(third.closes_silently()).await);
    assert_eq!(
        soon(kept[0].exchange(&Request::get("/v2/")))
            .await
            .unwrap()
            .status,
        200
    );
    kept.clear();
    eventually(async || stage.get("/v2/").await.status == 200).await;
}

#[tokio::test]
async fn heads_are_bounded() {
    let stage = Stage::open().await;
    let mut many = Request::get("/v2/");
    for nth in 0..200 {
        many = many.header(&format!("x-{nth}"), "1");
    }
    assert_eq!(stage.ask(many).await.status, 431);
    let large = Request::get("/v2/").header("x-large", "x".repeat(100_000));
    let answer = soon(large.send(stage.addr)).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 431));
    assert_eq!(stage.get("/v2/").await.status, 200);
}

#[tokio::test]
async fn several_accept_lines_and_encodings_change_nothing() {
    let stage = Stage::open().await;
    let image = stage.push(3, &[10]);
    let request = Request::get("/v2/app/manifests/1")
        .header("accept", "application/vnd.oci.image.index.v1+json")
        .header("accept", "application/vnd.oci.image.manifest.v1+json")
        .header("accept-encoding", "zstd, gzip");
    let manifest = stage.ask(request).await;
    assert_eq!(
        (manifest.header("content-encoding"), manifest.body.clone()),
        (None, image.root_document().bytes.clone())
    );
}

#[tokio::test]
async fn clients_that_take_nothing_are_cut() {
    let stage = Plan::default()
        .config(|config| config.client_stall_timeout = Duration::from_millis(200))
        .open()
        .await;
    // More than the kernel buffers on both sides of a loopback connection.
    let digest = stage.upstream.put_blob("app", random_bytes(4, 32 << 20));
    stage.get(&blob_path(&digest)).await;
    stage.committed(&digest).await;
    let mut http1 = TcpStream::connect(stage.addr).await.unwrap();
    http1
        .write_all(format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(&digest)).as_bytes())
        .await
        .unwrap();
    let silent = TcpStream::connect(stage.addr).await.unwrap();
    let mut sender = http2(TcpStream::connect(stage.addr).await.unwrap()).await;
    let answer = soon(sender.send_request(request(&blob_path(&digest))))
        .await
        .unwrap();
    eventually(async || metric(&stage, "connections 0")).await;
    assert!(
        metric(&stage, "clients_stalled_total 2"),
        "HTTP/1.1 stalls by its socket, HTTP/2 by its window; who says nothing does not count"
    );
    drop((http1, silent, answer));
}

#[tokio::test]
async fn what_is_answered_is_counted() {
    let stage = Stage::open().await;
    let image = stage.push(5, &[1000]);
    stage.pull(&image).await;
    stage.get("/v2/app/manifests/1").await;
    stage.get("/v2/app/manifests/none").await;
    assert!(metric(
        &stage,
        r#"requests_total{endpoint="manifest",cache="miss",status="2xx"} 1"#
    ));
    assert!(metric(
        &stage,
        r#"requests_total{endpoint="manifest",cache="hit",status="2xx"} 1"#
    ));
    assert!(metric(
        &stage,
        r#"requests_total{endpoint="manifest",cache="none",status="4xx"} 1"#
    ));
    let bytes: usize = image.blobs.iter().map(|blob| blob.bytes.len()).sum();
    eventually(async || {
        metric(
            &stage,
            &format!(r#"sent_bytes_total{{endpoint="blob"}} {bytes}"#),
        )
    })
    .await;
}

#[tokio::test]
async fn a_drain_lets_requests_finish() {
    let mut stage = Stage::open().await;
    let bytes = random_bytes(6, 2_000_000);
    let digest = stage.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest));
    let mut idle = Connection::open(stage.addr).await.unwrap();
    assert_eq!(
        idle.exchange(&Request::get("/v2/")).await.unwrap().status,
        200
    );
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let mut answer = soon(connection.start(&request)).await.unwrap();
    let first = soon(answer.chunk()).await.unwrap();
    let mut served = stage.stop();
    eventually(async || TcpStream::connect(stage.addr).await.is_err()).await;
    assert!(
        soon(idle.closes_silently()).await,
        "an idle connection does not hold it up"
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut served)
            .await
            .is_err(),
        "it waits for the request"
    );
    gate.release();
    let rest = soon(answer.whole()).await.unwrap();
    assert_eq!(
        (rest.end, rest.body.len()),
        (End::Clean, bytes.len() - first.len())
    );
    soon(served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_drain_ends() {
    let mut stage = Plan::default()
        .config(|config| config.shutdown_grace = Duration::from_millis(100))
        .open()
        .await;
    let digest = stage.upstream.put_blob("app", random_bytes(7, 2_000_000));
    let gate = Gate::new();
    stage
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest));
    let mut connection = Connection::open(stage.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let mut answer = soon(connection.start(&request)).await.unwrap();
    soon(answer.chunk()).await.unwrap();
    soon(stage.stop()).await.unwrap().unwrap();
    let rest = soon(answer.whole()).await.unwrap();
    assert_eq!(rest.end, End::Cut);
}

/// An unfinished TLS handshake counts as a half-sent request.
#[tokio::test]
async fn handshakes_that_are_never_ended_leave_connections_to_others() {
    let identity = Identity::new();
    let stage = Plan::default()
        .tls(identity.tls(None))
        .config(|config| config.max_connections = 4)
        .open()
        .await;
    let mut held = Vec::new();
    for nth in 0..4 {
        let mut stream = from(&stage, 2).await;
        stream.write_all(&CLIENT_HELLO[..nth]).await.unwrap();
        held.push(stream);
    }
    eventually(async || metric(&stage, "connections 4")).await;
    let ask = async || over_tls(&stage, identity.authority.pem()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(ask().await, 200);
    }
    assert!(!metric(&stage, "connections_displaced_total 0"));
    // Its place is taken, so it is closed now. The others end with the time of a handshake.
    let mut byte = [0];
    let closed = soon(held[0].read(&mut byte)).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    assert_eq!(ask().await, 200);
    let is_open = held[3].try_read(&mut byte);
    assert!(
        is_open.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "the handshake's own time ended it"
    );
}
