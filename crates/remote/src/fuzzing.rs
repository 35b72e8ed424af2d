//! Properties that the parsers of the registry client satisfy for every input. The fuzz targets and
//! the tests of the stored corpus check these properties.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Uri};

use crate::auth::challenge;
use crate::auth::credentials::{Credentials, docker_config, is_helper_name, registry_of};
use crate::auth::token::Token;
use crate::connect::guard::{AllowedAddresses, TargetPolicy, host_of, is_public, port_of};
use crate::exchange;
use crate::exchange::content_range::ContentRange;
use crate::exchange::redirect::{next_link, resolve, same_origin};
use crate::pull::referrers;

/// Checks the parser of `WWW-Authenticate` headers. Each line of the input is one header value.
pub fn challenge(input: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(http::header::WWW_AUTHENTICATE, value);
        }
    }
    let challenges = challenge::of(&headers);
    assert!(challenges.len() <= 64);
    for challenge in challenges {
        assert!(!challenge.scheme.is_empty() && is_lower(&challenge.scheme));
        for name in ["realm", "service", "scope", "error"] {
            let value = challenge.get(name);
            assert!(value.is_none_or(|value| value.len() <= input.len()));
        }
    }
}

fn is_lower(text: &str) -> bool {
    text.bytes().all(|byte| !byte.is_ascii_uppercase())
}

/// Checks the parser of `Content-Range`. A parsed range is valid, and formatting and parsing it
/// again gives the same value.
pub fn content_range(input: &[u8]) {
    let Some(range) = text(input).and_then(ContentRange::parse) else {
        return;
    };
    let written = match range {
        ContentRange::Part { first, last, total } => {
            assert!(first <= last && last < u64::MAX && total.is_none_or(|total| last < total));
            let total = total.map_or_else(|| "*".to_owned(), |total| total.to_string());
            format!("bytes {first}-{last}/{total}")
        }
        ContentRange::Unsatisfied { total } => format!("bytes */{total}"),
    };
    assert_eq!(ContentRange::parse(&written), Some(range));
}

/// Checks the resolution of `Location` and `Link`: pierhead never reaches an unconfigured host
/// without TLS or at an internal address.
pub fn location(input: &[u8]) {
    let base = Uri::from_static("https://registry.example:5000/v2/a/blobs/x?y=z");
    let Some(target) = text(input).and_then(|text| resolve(&base, text)) else {
        return;
    };
    let (host, port) = (host_of(&target), port_of(&target));
    let (Some(host), Some(_)) = (host, port) else {
        panic!("{target} is not a valid URL for a request");
    };
    assert!(
        target
            .authority()
            .is_some_and(|it| !it.as_str().contains('@'))
    );
    assert!(same_origin(&target, &target));
    assert_eq!(resolve(&base, &target.to_string()).as_ref(), Some(&target));
    match TargetPolicy::default().check(&target) {
        Ok(AllowedAddresses::Any) => panic!("{target} is allowed every address"),
        Ok(AllowedAddresses::Public) => {
            assert_eq!(target.scheme_str(), Some("https"));
            let address = host.parse::<std::net::IpAddr>();
            assert!(address.is_ok_and(is_public) || host.parse::<std::net::IpAddr>().is_err());
            assert!(host != "localhost");
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// Checks the parser of `Link`: the URL of the next page is a part of the input.
pub fn link(input: &[u8]) {
    let Some(value) = text(input) else { return };
    if let Some(target) = next_link(value) {
        assert!(value.contains(&format!("<{target}>")) && !target.contains('>'));
    }
}

/// Checks the merging of the pages of a referrers list. An empty line separates the pages of the
/// input.
pub fn referrers(input: &[u8]) {
    let Some(all) = text(input) else { return };
    let pages: Vec<Bytes> = all
        .split("\n\n")
        .map(|page| Bytes::copy_from_slice(page.as_bytes()))
        .collect();
    let only = (pages.len() == 1).then(|| pages[0].clone());
    let Some(merged) = referrers::merge(pages) else {
        return;
    };
    assert!(
        only.is_none_or(|only| only == merged),
        "a single page was changed"
    );
    let merged: serde_json::Value = serde_json::from_slice(&merged).unwrap_or_default();
    assert!(merged["manifests"].is_array());
}

/// Checks the parser of a token server's response: a parsed token is valid in a header.
pub fn token(input: &[u8]) {
    let Some(token) = Token::parse(input) else {
        return;
    };
    let header = HeaderValue::from_str(&format!("Bearer {}", *token.secret));
    assert!(!token.secret.is_empty() && header.is_ok());
}

/// Checks the parser of Docker's `config.json`. No error contains a secret, and no name of a helper
/// is a path or an option.
pub fn docker(input: &[u8]) {
    match docker_config(input) {
        Ok(all) => {
            for credentials in all.values() {
                assert_eq!(format!("{credentials:?}"), "Credentials(…)");
                if let Credentials::Helper(name) = credentials {
                    assert!(is_helper_name(name) && !name.contains('/') && !name.starts_with('-'));
                }
            }
        }
        Err(error) => assert!(error.to_string().len() <= 64 + input.len()),
    }
    let _ = text(input).and_then(registry_of);
}

/// Checks the parser of `Retry-After`, in seconds or as a date.
pub fn retry_after(input: &[u8]) {
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(input) {
        headers.insert(http::header::RETRY_AFTER, value);
    }
    let _ = exchange::retry_after(&headers);
}

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

#[cfg(test)]
mod tests {
    use pierhead_testkit::corpus::each;

    #[test]
    fn challenge() {
        each("challenge", super::challenge);
    }

    #[test]
    fn content_range() {
        each("content_range", super::content_range);
    }

    #[test]
    fn location() {
        each("location", super::location);
    }

    #[test]
    fn link() {
        each("link", super::link);
    }

    #[test]
    fn referrers() {
        each("referrers", super::referrers);
    }

    #[test]
    fn token() {
        each("token", super::token);
    }

    #[test]
    fn docker() {
        each("docker", super::docker);
    }

    #[test]
    fn retry_after() {
        each("retry_after", super::retry_after);
    }
}
