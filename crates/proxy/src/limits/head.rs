//! Limits of a request's head: length of the URI, number and length of the headers.
//!
//! The HTTP parsers (hyper and pierhead's own) have limits for heads, too. A head above a parser's
//! limit gets the status 431 or 414 without a body. The parsers' limits are twice the configured
//! limits. Thus a request that is a little too long gets a response that names the configured
//! limit.

use http::request::Parts;

use crate::config::Limits;
use crate::limits::limit::Limit;

/// Minimum bytes of hyper's buffer for a head. hyper uses this buffer for responses, too.
const MIN_HEAD_BUFFER: usize = 32 << 10;

/// Checks whether the head is within the limits. Does not allocate.
pub(crate) fn check(limits: &Limits, head: &Parts) -> Result<(), Limit> {
    let uri = head.uri.path().len() + head.uri.query().map_or(0, |query| query.len() + 1);
    if uri > limits.uri {
        return Err(Limit::Uri);
    }
    // Each header takes 4 bytes more than its name and value: the colon, the space and the line
    // end.
    let bytes = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + 4
    };
    if head.headers.len() > limits.headers
        || head.headers.iter().map(bytes).sum::<usize>() > limits.header_size
    {
        return Err(Limit::Headers);
    }
    Ok(())
}

/// Maximum number of headers that the HTTP parsers accept.
pub(crate) fn parser_count(limits: &Limits) -> usize {
    2 * limits.headers
}

/// Maximum bytes of a head that the HTTP parsers accept.
pub(crate) fn parser_bytes(limits: &Limits) -> usize {
    (2 * (limits.header_size + limits.uri)).max(MIN_HEAD_BUFFER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str, headers: &[(&str, usize)]) -> Parts {
        let mut request = http::Request::get(uri);
        for (name, length) in headers {
            request = request.header(*name, "x".repeat(*length));
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn each_bound_holds_to_the_byte() {
        let limits = Limits {
            headers: 2,
            header_size: 20,
            uri: 10,
            ..Limits::default()
        };
        let ok = [parts("/2345?7890", &[]), parts("/", &[("a", 5), ("b", 5)])];
        for head in &ok {
            assert_eq!(check(&limits, head), Ok(()));
        }
        assert_eq!(check(&limits, &parts("/2345?78901", &[])), Err(Limit::Uri));
        let many = parts("/", &[("a", 1), ("b", 1), ("c", 1)]);
        assert_eq!(check(&limits, &many), Err(Limit::Headers));
        let long = parts("/", &[("a", 5), ("b", 6)]);
        assert_eq!(check(&limits, &long), Err(Limit::Headers));
    }
}
