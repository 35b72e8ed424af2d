//! Tests of a worker's HTTP client over sockets: framing of bodies, invalid responses, error
//! statuses, idle connections, retries, the minimum rate, and TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use pierhead_testkit::http::server::TestServer;
use rustls::RootCertStore;

use super::*;
use crate::Error;
use crate::http::session::Session;
use crate::http::test_server::Connect as _;

mod framing;

/// Starts a server that sends one of `responses` on each connection, and then closes the
/// connection.
fn server(responses: Vec<Vec<u8>>) -> (Server, TestServer) {
    let responses = Mutex::new(responses.into_iter());
    let server = TestServer::start(move |_| responses.lock().next().unwrap_or_default());
    (server.server(), server)
}

/// Requests a path from a server that sends `response`. Returns the status, the body, and whether
/// the connection can be reused.
fn get(response: &[u8]) -> Result<(u16, Vec<u8>, bool), String> {
    let (status, body, is_idle, received) = exchange(response)?;
    assert_eq!(received, u64::try_from(response.len()).expect("small"));
    Ok((status, body, is_idle))
}

/// Does the same as [`get`], for a response that may have bytes after its body.
fn get_any(response: &[u8]) -> Result<(u16, Vec<u8>, bool), String> {
    let (status, body, is_idle, _) = exchange(response)?;
    Ok((status, body, is_idle))
}

/// Sends the request of [`get`]. Also returns the number of received bytes.
fn exchange(response: &[u8]) -> Result<(u16, Vec<u8>, bool, u64), String> {
    let (server, received) = server(vec![response.to_vec()]);
    let session = Session::new(&server);
    let result = (|| -> Result<_, String> {
        let answer = session
            .send(&Request::get("/x?y", &[]))
            .map_err(|error| error.to_string())?;
        let status = answer.status.as_u16();
        let body = answer.body.all(1000).map_err(|error| error.to_string())?;
        Ok((status, body))
    })();
    let ready = session.is_idle();
    let requests = received.requests();
    assert!(
        requests[0]
            .head
            .starts_with("GET /x?y HTTP/1.1\r\nhost: 127.0.0.1:"),
        "{requests:?}"
    );
    let (status, body) = result?;
    Ok((status, body, ready, server.received()))
}

#[test]
fn bodies_of_all_framings_are_read() {
    let ok = |text: &str| get(text.as_bytes());
    let hello = |ready| Ok((200, b"hello".to_vec(), ready));
    assert_eq!(
        ok("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"),
        hello(true)
    );
    assert_eq!(
        ok("HTTP/1.1 200 OK\r\nConnection: Close\r\ncontent-length: 5\r\n\r\nhello"),
        hello(false)
    );
    assert_eq!(ok("HTTP/1.0 200 OK\r\n\r\nhello"), hello(false));
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\na: b\r\n\r\n";
    assert_eq!(ok(chunked), hello(true));
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(ok(interim), Ok((404, Vec::new(), true)));
}

#[test]
fn a_truncated_or_invalid_response_is_an_error() {
    let head = "HTTP/1.1 200 OK\r\n";
    for (answer, expected) in [
        (
            format!("{head}content-length: 6\r\n\r\nhello"),
            "in the middle",
        ),
        (
            format!("{head}transfer-encoding: chunked\r\n\r\n5\r\nhel"),
            "in the middle",
        ),
        (
            format!("{head}transfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n"),
            "longer than its stated size",
        ),
        (
            format!("{head}transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
            "too large",
        ),
        (
            format!("{head}transfer-encoding: gzip\r\n\r\n"),
            "transfer coding",
        ),
        (
            format!("{head}content-length: 5\r\ncontent-length: 6\r\n\r\nhello"),
            "two different values",
        ),
        (
            format!("{head}content-length: -5\r\n\r\nhello"),
            "is no number",
        ),
        (
            format!("{head}content-length: 2000\r\n\r\n{}", "x".repeat(2000)),
            "more than 1000 bytes",
        ),
        (
            format!("{head}x: {}\r\n\r\n", "x".repeat(70_000)),
            "is too long",
        ),
        (
            format!(
                "{head}transfer-encoding: chunked\r\n\r\n0\r\n{}\r\n",
                "a: b\r\n".repeat(101)
            ),
            "too many trailers",
        ),
        (
            format!(
                "{}{head}content-length: 0\r\n\r\n",
                "HTTP/1.1 100 Continue\r\n\r\n".repeat(17)
            ),
            "with status 1xx",
        ),
        (head.to_owned(), "before it sent a response"),
        (String::new(), "before it sent a response"),
        ("SSH-2.0-x\r\n\r\n".to_owned(), "sent an invalid response"),
    ] {
        let error = get(answer.as_bytes()).expect_err(&answer);
        assert!(error.contains(expected), "{error} is not {expected:?}");
    }
}

#[test]
fn a_refusal_carries_advice_and_retry_after() {
    let body = r#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}"#;
    let head = "HTTP/1.1 401 Unauthorized\r\nretry-after: 3\r\n";
    let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let (server, _received) = server(vec![answer.into_bytes()]);
    let answer = Session::new(&server)
        .send(&Request::get("/", &[]))
        .expect("a response");
    let error = answer.into_error(&server, "redis:7");
    assert!(!error.is_retryable());
    let Error::Refused {
        message,
        retry_after,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(
        message.contains("who are you") && message.contains("--user"),
        "{message}"
    );
    assert_eq!(retry_after, Some(Duration::from_secs(3)));
}

/// Tests the status 403, which some registries send in place of 401.
#[test]
fn the_error_of_a_403_without_credentials_does_not_mention_them() {
    let answer = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n".to_vec();
    let (server, _received) = server(vec![answer]);
    let session = Session::new(&server);
    let answer = session.send(&Request::get("/", &[])).expect("a response");
    let error = answer.into_error(&server, "redis:7").to_string();
    assert!(
        error.contains("403") && !error.contains("credentials"),
        "{error}"
    );
}

#[test]
fn a_closed_idle_connection_is_replaced() {
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_vec();
    let (server, received) = server(vec![answer.clone(), answer]);
    let session = Session::new(&server);
    for path in ["/1", "/2"] {
        let answer = session.send(&Request::get(path, &[])).expect("a response");
        let body = answer.body.all(10).expect("a body");
        assert_eq!(body, b"ok", "{path}");
        session.until_closed();
    }
    assert_eq!(received.targets(), ["GET /1", "GET /2"]);
}

#[test]
fn https_to_a_server_without_tls_advises_http() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        // Reads the TLS hello of the client, so that closing the connection sends no reset.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let url = Url::parse(&format!("https://{address}")).expect("a url");
    let server = Server::new(
        url,
        TlsConfigs::new(RootCertStore::empty, None, None).expect("roots"),
        None,
    );
    let session = Session::new(&server);
    let refused = session.send(&Request::get("/", &[])).err();
    let refused = refused.expect("no response");
    assert!(refused.to_string().contains("try http://"), "{refused}");
    assert!(!refused.is_retryable());
    drop(session);
    thread.join().expect("a server");
}

#[test]
fn a_response_below_the_minimum_rate_fails_and_a_long_wait_does_not() {
    let second = Duration::from_secs(1);
    let fails = |bytes_per_second: u64| {
        let mut rate = connection::MinimumRate::default();
        (0..1000).any(|_| !rate.count_read(second, bytes_per_second))
    };
    assert!(fails(0) && fails(1) && fails(100));
    assert!(!fails(1000) && !fails(1 << 20));
    // In this case, the server plans a bundle for a minute, and then sends the whole bundle at
    // once.
    let mut rate = connection::MinimumRate::default();
    assert!(rate.count_read(59 * second, 1) && rate.count_read(second, 1 << 20));
    assert!(rate.count_read(60 * second, 1));
}

#[test]
fn only_a_tls_connection_loads_the_roots() {
    let loads = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&loads);
    let roots = move || {
        counter.fetch_add(1, Ordering::Relaxed);
        RootCertStore::empty()
    };
    let tls = TlsConfigs::new(roots, None, None).expect("nothing to read");
    let (plain, _received) = server(vec![b"HTTP/1.0 200 OK\r\n\r\n".to_vec()]);
    let http = Server::new(plain.url().clone(), tls.clone(), None);
    Session::new(&http)
        .send(&Request::get("/", &[]))
        .expect("a response over plain HTTP");
    assert_eq!(loads.load(Ordering::Relaxed), 0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let https = Server::new(Url::parse(&url).expect("a URL"), tls, None);
    for server in [https.clone(), https.redirected_to(https.url().clone())] {
        // A connect sends no byte, since the TLS handshake follows with the first request.
        Session::new(&server).connect().expect("a TCP connection");
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    }
}
