//! Tests of connections of clients to the proxy: TLS, HTTP/2, corrupt and aborted responses,
//! limits, client timeouts, shutdown.
#![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::{
    Fixture, FixtureOptions, TlsFiles, blob_path, connect_from, error_code, eventually, has_metric,
    in_time,
};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pierhead_testkit::http::{Connection, End, Request};
use pierhead_testkit::images::random_bytes;
use pierhead_testkit::log::capture;
use pierhead_testkit::registry::{Authority, Fault, Gate};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The first bytes of a ClientHello, which starts a TLS handshake.
const CLIENT_HELLO: [u8; 48] = {
    let mut hello = [b'x'; 48];
    (hello[0], hello[1], hello[2], hello[3], hello[4], hello[5]) = (0x16, 3, 1, 0, 43, 1);
    hello
};

#[tokio::test]
async fn tls_on_a_plain_port_gets_an_http_response() {
    let fixture = Fixture::start().await;
    let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
    stream.write_all(&CLIENT_HELLO).await.unwrap();
    let mut response = [0; 5];
    in_time(stream.read_exact(&mut response)).await.unwrap();
    assert_eq!(
        &response, b"HTTP/",
        "dockerd falls back to plain HTTP only after an HTTP response"
    );
}

async fn over_tls(fixture: &Fixture, ca_pem: &str) -> std::io::Result<u16> {
    let mut connection = in_time(Connection::open_tls(fixture.addr, "localhost", ca_pem)).await?;
    Ok(in_time(connection.exchange(&Request::get("/v2/")))
        .await?
        .status)
}

#[tokio::test]
async fn a_changed_certificate_is_used() {
    let files = TlsFiles::new();
    let fixture = FixtureOptions::default().tls(files.tls(None)).start().await;
    let mut open = Connection::open_tls(fixture.addr, "localhost", files.authority.pem())
        .await
        .unwrap();
    assert_eq!(
        over_tls(&fixture, files.authority.pem()).await.unwrap(),
        200
    );
    // If a TLS file becomes unusable, the previous configuration stays in use.
    std::fs::write(files.path("cert.pem"), "half a certif").unwrap();
    let other = Authority::new();
    assert!(over_tls(&fixture, other.pem()).await.is_err());
    assert_eq!(
        over_tls(&fixture, files.authority.pem()).await.unwrap(),
        200
    );
    files.issue(&other);
    eventually(async || over_tls(&fixture, other.pem()).await.is_ok()).await;
    assert!(over_tls(&fixture, files.authority.pem()).await.is_err());
    let status = in_time(open.exchange(&Request::get("/v2/")))
        .await
        .unwrap()
        .status;
    assert_eq!(status, 200, "open connections stay");
}

#[tokio::test]
async fn plain_text_on_a_tls_port_is_closed() {
    let files = TlsFiles::new();
    let fixture = FixtureOptions::default().tls(files.tls(None)).start().await;
    let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
    stream
        .write_all(b"GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = in_time(stream.read_to_end(&mut rest)).await;
    assert!(!rest.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn an_unusable_tls_file_is_named() {
    let files = TlsFiles::new();
    std::fs::write(files.path("key.pem"), "no key").unwrap();
    let mut fixture = FixtureOptions::default().tls(files.tls(None)).start().await;
    let error = in_time(fixture.stop()).await.unwrap().unwrap_err();
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
    fixture: &Fixture,
    config: rustls::ClientConfig,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(fixture.addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[tokio::test]
async fn clients_must_present_a_certificate_with_client_ca() {
    let (files, clients) = (TlsFiles::new(), Authority::new());
    let client_ca = files.path("clients.pem");
    std::fs::write(&client_ca, clients.pem()).unwrap();
    let fixture = FixtureOptions::default()
        .tls(files.tls(Some(&client_ca)))
        .start()
        .await;
    assert!(
        over_tls(&fixture, files.authority.pem()).await.is_err(),
        "without a certificate"
    );
    let request = async |own: (String, String)| {
        let config = client(files.authority.pem(), Some((&own.0, &own.1)), b"http/1.1");
        let mut stream = connect(&fixture, config).await?;
        stream
            .write_all(b"GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            .await?;
        let mut response = Vec::new();
        in_time(stream.read_to_end(&mut response)).await?;
        Ok::<_, std::io::Error>(response.starts_with(b"HTTP/1.1 200"))
    };
    assert!(request(clients.issue(&["vm-1".to_owned()])).await.unwrap());
    let stranger = request(Authority::new().issue(&["vm-1".to_owned()])).await;
    assert!(!stranger.unwrap_or(false));
}

#[tokio::test]
async fn a_repeated_failure_of_a_handshake_has_one_line() {
    let files = TlsFiles::new();
    files.write("clients.pem", files.authority.pem());
    let tls = files.tls(Some(&files.path("clients.pem")));
    let fixture = FixtureOptions::default().tls(tls).start().await;
    let lines = capture();
    for _ in 0..5 {
        let refused = over_tls(&fixture, files.authority.pem()).await;
        assert!(refused.is_err(), "without a certificate");
    }
    let failed = lines.with("TLS handshake failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].contains("presented no certificate"), "{failed:?}");
    assert!(failed[0].contains("client=127.0.0.1"), "{failed:?}");
    // A client that speaks plain HTTP gets a line, too.
    let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
    stream
        .write_all(b"GET /v2/ HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    let _ = in_time(stream.read_to_end(&mut Vec::new())).await;
    let failed = lines.with("TLS handshake failed");
    assert!(failed[1].contains("https://"), "{failed:?}");
}

#[tokio::test]
async fn a_bare_lf_as_a_line_end_over_tls_is_refused() {
    let files = TlsFiles::new();
    let fixture = FixtureOptions::default().tls(files.tls(None)).start().await;
    let good = "GET /v2/ HTTP/1.1\r\nhost: a\r\n\r\n";
    let ends: Vec<_> = good.match_indices("\r\n").map(|(at, _)| at).collect();
    for at in ends {
        let mut bad = good.to_owned();
        bad.replace_range(at..=at, "");
        let config = client(files.authority.pem(), None, b"http/1.1");
        let mut stream = connect(&fixture, config).await.unwrap();
        let last = "GET /v2/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        let requests = format!("{good}{bad}{last}");
        stream.write_all(requests.as_bytes()).await.unwrap();
        let mut responses = Vec::new();
        let _ = in_time(stream.read_to_end(&mut responses)).await;
        let responses = String::from_utf8_lossy(&responses);
        let statuses: Vec<_> = responses
            .match_indices("HTTP/1.1 ")
            .map(|(at, _)| &responses[at..][9..12])
            .collect();
        assert_eq!(statuses, ["200", "400"], "{bad:?} gets {responses}");
    }
}

type Sender = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Sender {
    let handshake = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream));
    let (sender, connection) = in_time(handshake).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Returns the bytes of an HTTP/2 connection that opens and resets this number of streams
/// (RFC 9113).
fn stream_resets(streams: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        bytes.extend([0, 0, u8::try_from(payload.len()).unwrap(), kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
    };
    let (settings, headers, rst_stream) = (4, 1, 3);
    frame(settings, 0, 0, &[]);
    for nth in 0..streams {
        let stream = 2 * nth + 1;
        // HPACK: `:method GET`, `:scheme http` and `:path /` by their indexes in the static table,
        // and `:authority a` with a literal value. The flags are END_STREAM and END_HEADERS.
        frame(headers, 5, stream, &[0x82, 0x86, 0x84, 0x41, 1, b'a']);
        let cancel = 8_u32.to_be_bytes();
        frame(rst_stream, 0, stream, &cancel);
    }
    bytes
}

#[tokio::test]
async fn repeated_floods_of_stream_resets_have_one_line() {
    let fixture = Fixture::start().await;
    let lines = capture();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
        stream.write_all(&stream_resets(100)).await.unwrap();
        let mut frames = Vec::new();
        let _ = in_time(stream.read_to_end(&mut frames)).await;
        let calm = b"too_many_resets";
        let is_refused = frames.windows(calm.len()).any(|bytes| bytes == calm);
        assert!(is_refused, "{}", frames.escape_ascii());
    }
    eventually(async || !lines.with("HTTP/2 connection closed").is_empty()).await;
    let closed = lines.with("HTTP/2 connection closed");
    assert_eq!(closed.len(), 1, "{closed:?}");
    assert!(closed[0].contains("reset too many streams"), "{closed:?}");
    assert!(closed[0].contains("client=127.0.0.1"), "{closed:?}");
}

fn request(path: &str) -> hyper::Request<Empty<Bytes>> {
    hyper::Request::get(format!("http://localhost{path}"))
        .body(Empty::new())
        .unwrap()
}

#[tokio::test]
async fn http2_with_and_without_tls() {
    let files = TlsFiles::new();
    let secure = FixtureOptions::default().tls(files.tls(None)).start().await;
    let stream = connect(&secure, client(files.authority.pem(), None, b"h2"))
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let plain = Fixture::start().await;
    let over_plain = http2(TcpStream::connect(plain.addr).await.unwrap()).await;
    for (fixture, mut sender) in [(&secure, http2(stream).await), (&plain, over_plain)] {
        let image = fixture.push(1, &[3_000_000, 400_000]);
        let blobs = image
            .blobs
            .iter()
            .map(|blob| sender.send_request(request(&blob_path(&blob.digest))))
            .collect::<Vec<_>>();
        for (response, blob) in blobs.into_iter().zip(&image.blobs) {
            let response = in_time(response).await.unwrap();
            assert_eq!(
                response.headers()["docker-content-digest"],
                blob.digest.to_string()
            );
            let body = in_time(response.into_body().collect())
                .await
                .unwrap()
                .to_bytes();
            assert!(body == blob.bytes);
        }
        let mut head = request("/v2/app/manifests/1");
        *head.method_mut() = hyper::Method::HEAD;
        let head = in_time(sender.send_request(head)).await.unwrap();
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

/// Puts a blob into the registry. The body of its response is corrupt, and arrives 100 ms after the
/// head.
fn put_small_corrupt_blob(fixture: &Fixture, seed: u64) -> (String, impl Future<Output = ()>) {
    let digest = fixture.upstream.put_blob("app", random_bytes(seed, 5000));
    let gate = Gate::new();
    for fault in [Fault::Corrupt(9), Fault::GateBody(1000, gate.clone())] {
        fixture.upstream.inject(fault.on_blob(&digest));
    }
    let release = async move {
        gate.reached(1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.release();
    };
    (blob_path(&digest), release)
}

#[tokio::test]
async fn a_small_corrupt_blob_over_tls_and_http2_is_503() {
    let files = TlsFiles::new();
    let secure = FixtureOptions::default().tls(files.tls(None)).start().await;
    let plain = Fixture::start().await;
    let (path, release) = put_small_corrupt_blob(&secure, 20);
    let mut connection = Connection::open_tls(secure.addr, "localhost", files.authority.pem())
        .await
        .unwrap();
    let request_over_tls = Request::get(path);
    let (refused, ()) = tokio::join!(in_time(connection.exchange(&request_over_tls)), release);
    let refused = refused.unwrap();
    assert_eq!((refused.status, refused.end), (503, End::Clean));
    assert_eq!(error_code(&refused), "UNAVAILABLE");

    let over_tls = connect(&secure, client(files.authority.pem(), None, b"h2"))
        .await
        .unwrap();
    let over_plain = http2(TcpStream::connect(plain.addr).await.unwrap()).await;
    for (fixture, mut sender) in [(&secure, http2(over_tls).await), (&plain, over_plain)] {
        let (path, release) = put_small_corrupt_blob(fixture, 21);
        let response = in_time(sender.send_request(request(&path)));
        let (response, ()) = tokio::join!(response, release);
        let response = response.unwrap();
        assert_eq!(response.status(), 503);
        let body = in_time(response.into_body().collect()).await.unwrap();
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        assert!(text.contains("UNAVAILABLE"), "{text}");
    }
}

#[tokio::test]
async fn a_corrupt_blob_over_http2_is_reset() {
    let fixture = Fixture::start().await;
    let digest = fixture.upstream.put_blob("app", random_bytes(2, 2_000_000));
    fixture.upstream.inject(Fault::Corrupt(9).on_blob(&digest));
    let mut sender = http2(TcpStream::connect(fixture.addr).await.unwrap()).await;
    let response = in_time(sender.send_request(request(&blob_path(&digest))))
        .await
        .unwrap();
    assert!(
        in_time(response.into_body().collect()).await.is_err(),
        "no clean end"
    );
}

#[tokio::test]
async fn a_connection_over_the_limit_gets_503() {
    let fixture = FixtureOptions::default()
        .config(|config| config.max_connections = 2)
        .start()
        .await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut connection = Connection::open(fixture.addr).await.unwrap();
        assert_eq!(
            in_time(connection.exchange(&Request::get("/v2/")))
                .await
                .unwrap()
                .status,
            200
        );
        open.push(connection);
    }
    let mut third = Connection::open(fixture.addr).await.unwrap();
    let refused = in_time(third.exchange(&Request::get("/v2/")))
        .await
        .unwrap();
    assert_eq!(
        (
            refused.status,
            refused.header("retry-after"),
            &*error_code(&refused)
        ),
        (503, Some("1"), "UNAVAILABLE")
    );
    assert!(in_time(third.closes_silently()).await);
    assert_eq!(
        in_time(open[0].exchange(&Request::get("/v2/")))
            .await
            .unwrap()
            .status,
        200
    );
    open.clear();
    eventually(async || fixture.get("/v2/").await.status == 200).await;
}

#[tokio::test]
async fn a_head_above_the_default_limits_is_refused() {
    let fixture = Fixture::start().await;
    let mut many = Request::get("/v2/");
    for nth in 0..200 {
        many = many.header(&format!("x-{nth}"), "1");
    }
    assert_eq!(fixture.send(many).await.status, 431);
    let large = Request::get("/v2/").header("x-large", "x".repeat(100_000));
    let response = in_time(large.send(fixture.addr)).await;
    assert!(response.is_err() || response.is_ok_and(|response| response.status == 431));
    assert_eq!(fixture.get("/v2/").await.status, 200);
}

#[tokio::test]
async fn accept_headers_do_not_change_the_response() {
    let fixture = Fixture::start().await;
    let image = fixture.push(3, &[10]);
    let request = Request::get("/v2/app/manifests/1")
        .header("accept", "application/vnd.oci.image.index.v1+json")
        .header("accept", "application/vnd.oci.image.manifest.v1+json")
        .header("accept-encoding", "zstd, gzip");
    let manifest = fixture.send(request).await;
    assert_eq!(
        (manifest.header("content-encoding"), manifest.body.clone()),
        (None, image.root_document().bytes.clone())
    );
}

#[tokio::test]
async fn clients_that_do_not_read_are_disconnected() {
    let fixture = FixtureOptions::default()
        .config(|config| config.client_stall_timeout = Duration::from_millis(200))
        .start()
        .await;
    // The blob is larger than the buffers of the kernel on both sides of a loopback connection.
    let digest = fixture.upstream.put_blob("app", random_bytes(4, 32 << 20));
    fixture.get(&blob_path(&digest)).await;
    fixture.wait_until_stored(&digest).await;
    let mut http1 = TcpStream::connect(fixture.addr).await.unwrap();
    http1
        .write_all(format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", blob_path(&digest)).as_bytes())
        .await
        .unwrap();
    let silent = TcpStream::connect(fixture.addr).await.unwrap();
    let mut sender = http2(TcpStream::connect(fixture.addr).await.unwrap()).await;
    let response = in_time(sender.send_request(request(&blob_path(&digest))))
        .await
        .unwrap();
    eventually(async || has_metric(&fixture, "connections 0")).await;
    assert!(
        has_metric(&fixture, "clients_stalled_total 2"),
        "one HTTP/1.1 and one HTTP/2 client; a silent client does not count"
    );
    drop((http1, silent, response));
}

#[tokio::test]
async fn responses_are_counted() {
    let fixture = Fixture::start().await;
    let image = fixture.push(5, &[1000]);
    fixture.pull(&image).await;
    fixture.get("/v2/app/manifests/1").await;
    fixture.get("/v2/app/manifests/none").await;
    assert!(has_metric(
        &fixture,
        r#"requests_total{endpoint="manifest",cache="miss",status="2xx"} 1"#
    ));
    assert!(has_metric(
        &fixture,
        r#"requests_total{endpoint="manifest",cache="hit",status="2xx"} 1"#
    ));
    assert!(has_metric(
        &fixture,
        r#"requests_total{endpoint="manifest",cache="none",status="4xx"} 1"#
    ));
    let bytes: usize = image.blobs.iter().map(|blob| blob.bytes.len()).sum();
    eventually(async || {
        has_metric(
            &fixture,
            &format!(r#"sent_bytes_total{{endpoint="blob"}} {bytes}"#),
        )
    })
    .await;
}

#[tokio::test]
async fn requests_in_progress_finish_during_the_shutdown() {
    let mut fixture = Fixture::start().await;
    let bytes = random_bytes(6, 2_000_000);
    let digest = fixture.upstream.put_blob("app", bytes.clone());
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest));
    let mut idle = Connection::open(fixture.addr).await.unwrap();
    assert_eq!(
        idle.exchange(&Request::get("/v2/")).await.unwrap().status,
        200
    );
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let mut response = in_time(connection.start(&request)).await.unwrap();
    let first = in_time(response.chunk()).await.unwrap();
    let mut served = fixture.stop();
    eventually(async || TcpStream::connect(fixture.addr).await.is_err()).await;
    assert!(
        in_time(idle.closes_silently()).await,
        "idle connections close at once"
    );
    assert!(
        tokio::time::timeout(Duration::from_millis(50), &mut served)
            .await
            .is_err(),
        "the shutdown waits for the request"
    );
    gate.release();
    let rest = in_time(response.whole()).await.unwrap();
    assert_eq!(
        (rest.end, rest.body.len()),
        (End::Clean, bytes.len() - first.len())
    );
    in_time(served).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_shutdown_aborts_requests_after_the_grace_period() {
    let mut fixture = FixtureOptions::default()
        .config(|config| config.shutdown_grace = Duration::from_millis(100))
        .start()
        .await;
    let digest = fixture.upstream.put_blob("app", random_bytes(7, 2_000_000));
    let gate = Gate::new();
    fixture
        .upstream
        .inject(Fault::GateBody(1_000_000, gate.clone()).on_blob(&digest));
    let mut connection = Connection::open(fixture.addr).await.unwrap();
    let request = Request::get(blob_path(&digest));
    let mut response = in_time(connection.start(&request)).await.unwrap();
    in_time(response.chunk()).await.unwrap();
    in_time(fixture.stop()).await.unwrap().unwrap();
    let rest = in_time(response.whole()).await.unwrap();
    assert_eq!(rest.end, End::Cut);
}

/// A connection with an unfinished TLS handshake counts like a connection with a half-sent request.
#[tokio::test]
async fn incomplete_handshakes_leave_connections_to_others() {
    let files = TlsFiles::new();
    let fixture = FixtureOptions::default()
        .tls(files.tls(None))
        .config(|config| config.max_connections = 4)
        .start()
        .await;
    let mut held = Vec::new();
    for nth in 0..4 {
        let mut stream = connect_from(&fixture, 2).await;
        stream.write_all(&CLIENT_HELLO[..nth]).await.unwrap();
        held.push(stream);
    }
    eventually(async || has_metric(&fixture, "connections 4")).await;
    let status = async || over_tls(&fixture, files.authority.pem()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(status().await, 200);
    }
    assert!(!has_metric(&fixture, "connections_displaced_total 0"));
    // The first connection lost its slot, so pierhead closed it. The other connections may stay
    // open for the time limit of a handshake.
    let mut byte = [0];
    let closed = in_time(held[0].read(&mut byte)).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    assert_eq!(status().await, 200);
    let is_open = held[3].try_read(&mut byte);
    assert!(
        is_open.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
        "the handshake timed out"
    );
}
