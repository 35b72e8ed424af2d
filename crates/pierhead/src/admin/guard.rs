//! Who may ask the admin listener for what.
//!
//! There is no password: what protects the cache API is that only this machine reaches it. A web page
//! that an operator visits runs on this machine, too; it can send requests here, by a name of its own
//! that it points to this address. So a request must name this address as its host, and one that
//! changes something must carry [`HEADER`], which a page cannot send to us.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, Method, StatusCode, header};

use crate::admin::body::{Answer, refuse};
use crate::api::HEADER;

/// Whether to go on, or the answer instead.
pub(crate) fn check(
    local: SocketAddr,
    peer: SocketAddr,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), Box<Answer>> {
    let forbid = |why: &str| Err(Box::new(refuse(StatusCode::FORBIDDEN, why)));
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return forbid("one Host header is needed");
    };
    if !host.to_str().is_ok_and(|host| names_us(host, local)) {
        return forbid(
            "the Host header must name this address: localhost or the IP address of the admin listener",
        );
    }
    if path.starts_with("/v1/") && !peer.ip().to_canonical().is_loopback() {
        return forbid(
            "the cache API answers this machine only; /metrics, /livez and /readyz answer all",
        );
    }
    if !matches!(*method, Method::GET | Method::HEAD) && !headers.contains_key(HEADER) {
        return forbid("a request that changes something needs the header X-Pierhead: 1");
    }
    Ok(())
}

/// A name can be made to point anywhere by whoever owns it; an address cannot.
fn names_us(host: &str, local: SocketAddr) -> bool {
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

    fn verdict(
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
    fn only_our_own_address_is_a_host() {
        let ask = |host: &str| {
            verdict(
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
            assert!(ask(host), "{host}");
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
            assert!(!ask(host), "{host}");
        }
        assert!(!verdict(
            "127.0.0.1:5001",
            "127.0.0.1:9",
            Method::GET,
            "/v1/stat",
            &[]
        ));
        assert!(!verdict(
            "127.0.0.1:5001",
            "127.0.0.1:9",
            Method::GET,
            "/metrics",
            &[("host", "localhost"), ("host", "evil.example")]
        ));
    }

    #[test]
    fn a_change_needs_the_header() {
        let host = ("host", "localhost");
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert!(
                !verdict(
                    "127.0.0.1:5001",
                    "127.0.0.1:9",
                    method.clone(),
                    "/v1/prune",
                    &[host]
                ),
                "{method}"
            );
            assert!(verdict(
                "127.0.0.1:5001",
                "127.0.0.1:9",
                method,
                "/v1/prune",
                &[host, (HEADER, "1")]
            ));
        }
    }

    #[test]
    fn others_get_metrics_only() {
        let host = ("host", "10.0.0.1:5001");
        assert!(verdict(
            "0.0.0.0:5001",
            "10.0.0.7:9",
            Method::GET,
            "/metrics",
            &[host]
        ));
        assert!(!verdict(
            "0.0.0.0:5001",
            "10.0.0.7:9",
            Method::GET,
            "/v1/stat",
            &[host]
        ));
        assert!(verdict(
            "[::]:5001",
            "[::ffff:127.0.0.1]:9",
            Method::GET,
            "/v1/stat",
            &[("host", "localhost")]
        ));
    }
}
