//! Decides whether the admin listener accepts a request.
//!
//! The admin API has no password. So its part under `/v1/` (the cache API) accepts requests from
//! this host only. But a web page in an operator's browser also sends its requests from this host:
//! such a page can reach the admin listener by DNS rebinding or by cross-site requests. Therefore,
//! the `Host` header must name the address of the listener, and a request that changes something
//! must have [`HEADER`], which a browser does not send across origins.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Method, StatusCode, header};

use super::api::HEADER;
use super::body::{AdminResponse, error_response};

/// Returns the error response if the guard refuses the request.
pub(crate) fn check(
    local: SocketAddr,
    peer: SocketAddr,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), Box<AdminResponse>> {
    let forbid = |why: &str| Err(Box::new(error_response(StatusCode::FORBIDDEN, why)));
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return forbid("the request must have exactly one Host header");
    };
    if !host
        .to_str()
        .is_ok_and(|host| names_this_address(host, local))
    {
        return forbid(
            "the Host header must name this address: localhost or the IP address of the admin listener",
        );
    }
    if path.starts_with("/v1/") && !peer.ip().to_canonical().is_loopback() {
        return forbid(
            "the cache API accepts requests of this host only; /metrics, /livez and /readyz accept all",
        );
    }
    if !matches!(*method, Method::GET | Method::HEAD) && !headers.contains_key(HEADER) {
        return forbid("a request that changes something needs the header X-Pierhead: 1");
    }
    Ok(())
}

/// Accepts IP addresses and `localhost` only: any other name has an owner who can point it to this
/// address in DNS.
fn names_this_address(host: &str, local: SocketAddr) -> bool {
    let Ok(authority) = host.parse::<http::uri::Authority>() else {
        return false;
    };
    let name = authority.host();
    if name.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    let Ok(ip) = bare.parse::<IpAddr>() else {
        return false;
    };
    let (ip, own) = (ip.to_canonical(), local.ip().to_canonical());
    ip.is_loopback() || ip == own || own.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_accepted(
        local: &str,
        peer: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header"));
        }
        check(
            local.parse().expect("an address"),
            peer.parse().expect("an address"),
            &method,
            path,
            &map,
        )
        .is_ok()
    }

    #[test]
    fn the_host_must_be_localhost_or_the_address_of_the_listener() {
        let accepts = |host: &str| {
            is_accepted(
                "127.0.0.1:5001",
                "127.0.0.1:9",
                Method::GET,
                "/v1/stat",
                &[("host", host)],
            )
        };
        for host in [
            "127.0.0.1:5001",
            "localhost",
            "LOCALHOST:5001",
            "[::1]:5001",
            "127.0.0.2",
        ] {
            assert!(accepts(host), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example:5001",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "a b",
            "user@evil.example",
        ] {
            assert!(!accepts(host), "{host}");
        }
        assert!(!is_accepted(
            "127.0.0.1:5001",
            "127.0.0.1:9",
            Method::GET,
            "/v1/stat",
            &[]
        ));
        assert!(!is_accepted(
            "127.0.0.1:5001",
            "127.0.0.1:9",
            Method::GET,
            "/metrics",
            &[("host", "localhost"), ("host", "evil.example")]
        ));
    }

    #[test]
    fn a_request_that_changes_something_needs_the_header() {
        let host = ("host", "localhost");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert!(
                !is_accepted(
                    "127.0.0.1:5001",
                    "127.0.0.1:9",
                    method.clone(),
                    "/v1/prune",
                    &[host]
                ),
                "{method}"
            );
            assert!(is_accepted(
                "127.0.0.1:5001",
                "127.0.0.1:9",
                method,
                "/v1/prune",
                &[host, (HEADER, "1")]
            ));
        }
    }

    #[test]
    fn other_hosts_get_metrics_only() {
        let host = ("host", "10.0.0.1:5001");
        assert!(is_accepted(
            "0.0.0.0:5001",
            "10.0.0.7:9",
            Method::GET,
            "/metrics",
            &[host]
        ));
        assert!(!is_accepted(
            "0.0.0.0:5001",
            "10.0.0.7:9",
            Method::GET,
            "/v1/stat",
            &[host]
        ));
        assert!(is_accepted(
            "[::]:5001",
            "[::ffff:127.0.0.1]:9",
            Method::GET,
            "/v1/stat",
            &[("host", "localhost")]
        ));
    }
}
