//! Properties of the proxy's parsers that hold for every input. The fuzz targets and the tests of
//! the stored corpus check these properties.

use std::future::Future;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method};
use pierhead_oci::Endpoint;

use crate::access::basic::Basic;
use crate::access::htpasswd::Users;
use crate::access::rules::Pattern;
use crate::config::Config;
use crate::http::http1::head::{MAX_HEAD, RequestHead, parse};
use crate::http::range::{Selection, matches_etag, select};
use crate::http::route::route;
use crate::pull::document::Document;
use crate::pull::lists::{TagPageRequest, filtered, link};
use crate::pull::tag_page;

/// Checks the parser of request heads: a head that the HTTP/1.1 fast path accepts is unambiguous.
pub fn head(input: &[u8]) {
    let RequestHead::Simple(simple) = parse(input) else {
        return;
    };
    let len = simple.len;
    assert!(len <= input.len() && len <= MAX_HEAD);
    assert!(matches!(simple.parts.method, Method::GET | Method::HEAD));
    assert!(simple.parts.uri.path().starts_with('/'));
    let headers = &simple.parts.headers;
    assert!(!headers.contains_key("transfer-encoding") && !headers.contains_key("upgrade"));
    let lengths = headers.get_all("content-length");
    assert!(lengths.iter().all(|length| length == "0"), "a body");
    // The result does not depend on the bytes after the head, nor on how the bytes are split into
    // reads.
    assert!(matches!(parse(&input[..len]), RequestHead::Simple(again) if again.len == len));
    assert!(matches!(
        parse(&input[..len - 1]),
        RequestHead::Partial | RequestHead::Other
    ));
}

/// Checks the evaluation of `Range`, `If-Range` and `If-None-Match`. Each line of the input is the
/// value of one header.
pub fn range(input: &[u8]) {
    const TAG: &str = "\"sha256:aa\"";
    let mut headers = HeaderMap::new();
    let names = [RANGE, IF_RANGE, IF_NONE_MATCH];
    for (name, line) in names.iter().zip(input.split(|byte| *byte == b'\n')) {
        if let Ok(value) = HeaderValue::from_bytes(line)
            && !value.is_empty()
        {
            headers.insert(name, value);
        }
    }
    let _ = matches_etag(&headers, TAG.as_bytes());
    for size in [0, 1, 2, 1000, u64::MAX] {
        match select(&headers, TAG.as_bytes(), size) {
            Selection::Part { first, last } => assert!(first <= last && last < size),
            Selection::Unsatisfiable => assert!(size > 0),
            Selection::Whole => {}
        }
    }
}

/// Checks the parser of path and query of a request: the result is a repository of one registry, or
/// a refusal.
pub fn routed(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (path, query) = text
        .split_once('?')
        .map_or((text, None), |(path, query)| (path, Some(query)));
    let Ok(endpoint) = Endpoint::parse(path, query) else {
        return;
    };
    let Some(name) = endpoint.name() else { return };
    let Ok((registry, repository)) = route(name, query, &Config::default()) else {
        return;
    };
    let both = format!("{registry}/{repository}");
    assert!(both.bytes().all(|byte| byte.is_ascii_graphic()), "{both}");
    assert!(!both.contains(['?', '#', '%', '\\', '@']), "{both}");
    let climbs = |part: &str| part.is_empty() || part == "." || part == "..";
    assert!(!both.split('/').any(climbs), "{both}");
}

/// Checks the filter of cached referrers, and the pages of a cached list of tags. The first line of
/// the input is the query, the rest is the list.
pub fn lists(input: &[u8]) {
    let line_end = input.iter().position(|byte| *byte == b'\n');
    let (query, list) = line_end.map_or((&b""[..], input), |line_end| {
        (&input[..line_end], &input[line_end + 1..])
    });
    if let Ok(index) = filtered(list, "application/x") {
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap_or_default();
        let manifests = index["manifests"].as_array().expect("an index");
        assert!(
            manifests
                .iter()
                .all(|it| it["artifactType"] == "application/x")
        );
    }
    let Ok(query) = std::str::from_utf8(query) else {
        return;
    };
    let Ok(endpoint) = Endpoint::parse("/v2/a/tags/list", Some(query)) else {
        return;
    };
    let Endpoint::Tags { name, n, last } = &endpoint else {
        return;
    };
    let document = Document::of(Bytes::copy_from_slice(list));
    let Ok(range) = at_once(tag_page::find_page(&document, *n, last.as_deref())) else {
        return;
    };
    assert!(range.first <= range.end && range.end <= document.size());
    let page = at_once(tag_page::read(&document, &range, [b"[", b"]"]));
    let page = page.expect("a document in memory");
    assert_eq!(
        u64::try_from(page.len()).ok(),
        Some(range.end - range.first + 2)
    );
    if let Some(last) = &range.next_after {
        let page = TagPageRequest {
            name,
            query: Some(query),
            n: *n,
            last: None,
        };
        let link = link(&page, last);
        assert!(HeaderValue::from_str(&link).is_ok(), "{link:?}");
        assert_eq!(link.matches(['<', '>']).count(), 2, "{link:?}");
    }
}

/// Returns the value of a future that is ready at once.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future is not ready"),
    }
}

/// Checks the parser of a client's `Authorization` header.
pub fn authorization(input: &[u8]) {
    let Ok(header) = HeaderValue::from_bytes(input) else {
        return;
    };
    if let Some(basic) = Basic::parse(&header) {
        assert!(basic.user().len() + basic.password().len() < input.len());
        assert!(!basic.user().contains(':'));
    }
}

/// Checks the htpasswd parser: an error names a line of the file.
pub fn htpasswd(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match Users::parse(text) {
        Ok(users) => assert!(users.len() <= text.lines().count()),
        Err((line, why)) => {
            assert!((1..=text.lines().count()).contains(&line) && !why.is_empty());
        }
    }
}

/// Checks the parser of access rules: formatting and parsing a rule again gives the same rule.
pub fn pattern(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(pattern) = text.parse::<Pattern>() {
        assert_eq!(
            pattern.to_string().parse::<Pattern>().as_ref(),
            Ok(&pattern)
        );
    }
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn head() {
        each("head", super::head);
    }

    #[test]
    fn range() {
        each("range", super::range);
    }

    #[test]
    fn routed() {
        each("routed", super::routed);
    }

    #[test]
    fn lists() {
        each("lists", super::lists);
    }

    #[test]
    fn authorization() {
        each("authorization", super::authorization);
    }

    #[test]
    fn htpasswd() {
        each("htpasswd", super::htpasswd);
    }

    #[test]
    fn pattern() {
        each("pattern", super::pattern);
    }
}
