//! Resolves the targets of the headers `Location` and `Link` (RFC 3986, section 5), and compares
//! the origins of URLs.

use http::Uri;
use http::uri::PathAndQuery;

use crate::connect::guard::{host_of, port_of};

/// Maximum number of HTTP redirects that one request follows.
pub(crate) const MAX_HOPS: usize = 5;

/// Maximum length of a redirect's target in bytes. Signed URLs of object stores have up to about 2
/// KiB.
const MAX_LEN: usize = 16 << 10;

/// Resolves a reference in `Location` or `Link` against the URL of the response. `None` if the
/// reference is invalid.
pub(crate) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.trim().split('#').next().unwrap_or_default();
    if reference.is_empty() || reference.len() > MAX_LEN {
        return None;
    }
    if has_scheme(reference) {
        let uri: Uri = reference.parse().ok()?;
        return is_fetchable(&uri).then_some(uri);
    }
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    if reference.starts_with("//") {
        let uri: Uri = format!("{scheme}:{reference}").parse().ok()?;
        return is_fetchable(&uri).then_some(uri);
    }
    let path = if reference.starts_with('/') {
        reference.to_owned()
    } else if reference.starts_with('?') {
        format!("{}{reference}", base.path())
    } else {
        let folder = base
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{folder}/{reference}")
    };
    let path: PathAndQuery = path.parse().ok()?;
    Uri::builder()
        .scheme(scheme)
        .authority(authority.clone())
        .path_and_query(path)
        .build()
        .ok()
}

fn has_scheme(reference: &str) -> bool {
    let end = reference
        .find([':', '/', '?'])
        .filter(|at| reference.as_bytes()[*at] == b':');
    end.is_some_and(|at| {
        at > 0
            && reference.as_bytes()[..at]
                .iter()
                .all(u8::is_ascii_alphanumeric)
    })
}

/// Whether the URL has a form to which a request may go. A URL with a user name is refused, because
/// a user name can make one host look like another.
fn is_fetchable(uri: &Uri) -> bool {
    let plain_authority = uri
        .authority()
        .is_some_and(|authority| !authority.as_str().contains('@'));
    plain_authority && host_of(uri).is_some() && port_of(uri).is_some()
}

/// Whether scheme, host and port are equal, so that both URLs may get the same credentials.
pub(crate) fn same_origin(a: &Uri, b: &Uri) -> bool {
    a.scheme() == b.scheme() && host_of(a) == host_of(b) && port_of(a) == port_of(b)
}

/// Returns the target of `rel="next"` in a `Link` header's value (RFC 8288).
pub(crate) fn next_link(value: &str) -> Option<&str> {
    let mut rest = value.get(..value.len().min(MAX_LEN))?;
    loop {
        let (_, after) = rest.split_once('<')?;
        let (target, after) = after.split_once('>')?;
        let parameters = after.split('<').next().unwrap_or_default();
        let is_next = parameters.split([';', ',']).any(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or_default();
            let mut relations = value.trim().trim_matches('"').split_ascii_whitespace();
            name.trim().eq_ignore_ascii_case("rel")
                && relations.any(|word| word.eq_ignore_ascii_case("next"))
        });
        if is_next {
            return Some(target);
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn resolved(reference: &str) -> Option<String> {
        let base: Uri = "https://registry.io:5000/v2/a/blobs/x?y=z".parse().unwrap();
        resolve(&base, reference).map(|uri| uri.to_string())
    }

    #[test]
    fn references_resolve_against_the_base() {
        for (reference, expected) in [
            ("https://cdn.io/a?b=c", "https://cdn.io/a?b=c"),
            ("http://cdn.io", "http://cdn.io/"),
            ("//cdn.io/a", "https://cdn.io/a"),
            ("/other?q=1#f", "https://registry.io:5000/other?q=1"),
            ("sibling", "https://registry.io:5000/v2/a/blobs/sibling"),
            ("?n=2", "https://registry.io:5000/v2/a/blobs/x?n=2"),
        ] {
            assert_eq!(
                resolved(reference).as_deref(),
                Some(expected),
                "{reference}"
            );
        }
        for reference in [
            "",
            "#f",
            "ftp://cdn.io/",
            "https://",
            "https://u:p@cdn.io/",
            "//u@cdn.io/",
            "data:x",
            "sha256:x",
            "https://a b/",
        ] {
            assert_eq!(resolved(reference), None, "{reference}");
        }
    }

    #[test]
    fn origins_are_scheme_host_and_port() {
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://a.io/x", "https://A.io:443/y"));
        for other in [
            "http://a.io/",
            "https://a.io:444/",
            "https://b.a.io/",
            "https://b.io/",
        ] {
            assert!(!same("https://a.io/", other), "{other}");
        }
    }

    #[test]
    fn the_next_link_is_found() {
        assert_eq!(
            next_link("</v2/a/tags/list?n=2&last=b>; rel=\"next\""),
            Some("/v2/a/tags/list?n=2&last=b")
        );
        assert_eq!(next_link("<x>; rel=prev, <y>;REL=\"last Next\""), Some("y"));
        assert_eq!(next_link("<x>; rel=prev"), None);
        assert_eq!(next_link("<x; rel=next"), None);
        assert_eq!(next_link(""), None);
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,64}") {
            resolved(&text);
            next_link(&text);
        }
    }
}
