//! Tests of the parser for request heads: common requests, ambiguous requests, and heads that
//! arrive in pieces.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn simple(bytes: &[u8]) -> Option<SimpleRequest> {
    match parse(bytes) {
        RequestHead::Simple(simple) => Some(*simple),
        _ => None,
    }
}

fn outcome(head: &RequestHead) -> String {
    match head {
        RequestHead::Partial => "partial".to_owned(),
        RequestHead::Other => "other".to_owned(),
        RequestHead::Simple(simple) => format!("{simple:?}"),
    }
}

#[test]
fn requests_of_clients_are_common() {
    let docker =
        b"GET /v2/library/redis/manifests/7?ns=docker.io HTTP/1.1\r\nHost: 127.0.0.1:5000\r\n\
        User-Agent: docker/28.0 go/go1.23\r\nAccept: application/json\r\nAccept: */*\r\nEmpty:\r\n\
        Accept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\nGET /";
    let got = simple(docker).unwrap();
    assert_eq!((got.len, got.close), (docker.len() - 5, false));
    assert_eq!(
        (
            got.parts.method.as_str(),
            got.parts.uri.to_string(),
            got.parts.version
        ),
        (
            "GET",
            "/v2/library/redis/manifests/7?ns=docker.io".to_owned(),
            Version::HTTP_11
        )
    );
    let headers = got.parts.headers;
    assert_eq!(
        (headers.len(), headers.get_all("accept").iter().count()),
        (7, 2)
    );
    assert_eq!(
        (&headers["host"], &headers["empty"]),
        (&"127.0.0.1:5000".parse().unwrap(), &"".parse().unwrap())
    );
    let head = simple(
        b"HEAD /v2/ HTTP/1.1\r\nhost: a\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n",
    )
    .unwrap();
    assert_eq!((head.parts.method, head.close), (Method::HEAD, true));
    // The parser accepts a head without Host, because `handle` checks the Host header for
    // pierhead's HTTP/1 server and for hyper.
    assert!(simple(b"GET / HTTP/1.1\r\n\r\n").is_some());
}

#[test]
fn ambiguous_heads_are_left_to_hyper() {
    let lines = |lines: &str| format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
    for head in [
        lines("content-length: 5\r\n"),
        lines("content-length: 0\r\ncontent-length: 5\r\n"),
        lines("content-length: +0\r\n"),
        lines("content-length: 0, 0\r\n"),
        lines("transfer-encoding: chunked\r\n"),
        lines("content-length: 0\r\ntransfer-encoding: chunked\r\n"),
        lines("Transfer-Encoding: identity\r\n"),
        lines("expect: 100-continue\r\n"),
        lines("upgrade: h2c\r\nconnection: upgrade\r\n"),
        lines("connection: Upgrade\r\n"),
        lines("x: 1\r\n folded\r\n"),
        lines(" x: 1\r\n"),
        lines("x : 1\r\n"),
        lines("x: a\0b\r\n"),
        lines("x: a\rb\r\n"),
        lines("no colon\r\n"),
        lines(": no name\r\n"),
        lines("bad name: 1\r\n"),
        lines("connection: \u{e9}\r\n"),
        lines(&"x: 1\r\n".repeat(MAX_HEADERS)),
        lines(&format!("x: {}\r\n", "x".repeat(MAX_HEAD))),
        "GET / HTTP/1.0\r\nhost: a\r\n\r\n".to_owned(),
        "GET / HTTP/2.0\r\nhost: a\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET * HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET a HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET / a HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET /\0 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "GET /\r\nhost: a\r\n\r\n".to_owned(),
        "get / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "\x16\x03\x01\x00\x05hello".to_owned(),
        "x".repeat(MAX_HEAD),
    ] {
        assert_eq!(outcome(&parse(head.as_bytes())), "other", "{head:?}");
    }
}

/// Returns pieces of heads, valid and invalid, in any order. Such pieces reach more edge cases than
/// random bytes do.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "GET ",
        "HEAD ",
        "POST ",
        "/v2/",
        "/a?b=c",
        " HTTP/1.1",
        " HTTP/1.0",
        "\r\n",
        "\n",
        "\r",
        "\r\n\r\n",
        "host: a\r\n",
        "Host: b\r\n",
        "content-length: 0\r\n",
        "content-length: 7\r\n",
        "transfer-encoding: chunked\r\n",
        "connection: close\r\n",
        "connection: upgrade\r\n",
        "expect: 100-continue\r\n",
        " ",
        "\t",
        ":",
        "\0",
        "\u{16}",
        "x: y\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\u{e9}",
    ]);
    vec(piece, 0..12).prop_map(|pieces| pieces.concat().into_bytes())
}

/// Returns heads of valid lines, whose combination may be invalid.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![
        "host: a\r\n",
        "content-length: 0\r\n",
        "Content-Length: 7\r\n",
        "transfer-encoding: chunked\r\n",
        "connection: keep-alive\r\n",
        "accept: */*\r\n",
    ]);
    vec(line, 0..4)
        .prop_map(|lines| format!("GET / HTTP/1.1\r\n{}\r\nGET /", lines.concat()).into_bytes())
}

fn heads() -> impl Strategy<Value = Vec<u8>> {
    let valid = "(GET|HEAD) /[a-z/?=.:%]{0,20} HTTP/1.1\r\n(([a-z-]{1,12}: [ -~]{0,20}|connection: close)\r\n){0,6}\r\n(GET /x HT)?";
    let valid = proptest::string::string_regex(valid).expect("a constant that parses");
    prop_oneof![
        valid.prop_map(String::into_bytes),
        lines(),
        pieces(),
        vec(any::<u8>(), 0..100)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// The result of the parser does not depend on how the bytes are split into reads, and each
    /// byte is used once.
    #[test]
    fn a_split_at_any_byte_changes_nothing(bytes in heads()) {
        let whole = parse(&bytes);
        if let RequestHead::Simple(simple) = &whole {
            prop_assert!(simple.len > 0 && simple.len <= bytes.len());
        }
        let mut decided = false;
        for end in 0..=bytes.len() {
            match parse(&bytes[..end]) {
                RequestHead::Partial => prop_assert!(!decided, "partial again at {end}"),
                RequestHead::Other => {
                    decided = true;
                    prop_assert_eq!(outcome(&whole), "other", "at {}", end);
                }
                RequestHead::Simple(simple) => {
                    decided = true;
                    prop_assert!(end >= simple.len);
                    prop_assert_eq!(outcome(&RequestHead::Simple(simple)), outcome(&whole), "at {}", end);
                }
            }
        }
    }

    /// A common GET or HEAD has no header that announces a body.
    #[test]
    fn a_common_request_has_no_body(bytes in heads()) {
        if let Some(SimpleRequest { parts, len, .. }) = simple(&bytes) {
            prop_assert!(bytes[..len].ends_with(b"\n"));
            prop_assert!(!parts.headers.contains_key("transfer-encoding"));
            prop_assert!(parts.headers.get_all("content-length").iter().all(|length| length == "0"));
            prop_assert!(parts.uri.to_string().starts_with('/'));
        }
    }
}
