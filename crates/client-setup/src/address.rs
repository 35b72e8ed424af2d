//! The address (URL) at which clients reach pierhead: its type, its parser, and the default.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use http::uri::{Authority, Scheme, Uri};

/// The port on which `pierhead serve` listens by default.
const DEFAULT_PORT: u16 = 5000;

/// The error for a text that is not a valid [`Address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write http://HOST:PORT or https://HOST:PORT")]
pub struct InvalidAddress;

/// An address of the form `http://host:port` or `https://host:port`, without path and user. A text
/// without scheme and port, such as `pierhead.example`, means `http://pierhead.example:5000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    authority: Authority,
    tls: bool,
}

impl Address {
    /// Returns the address of a listener on this machine. An unspecified address (0.0.0.0 or ::)
    /// becomes the loopback address.
    pub fn of_listener(listener: SocketAddr, tls: bool) -> Self {
        let ip = match listener.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        let text = SocketAddr::new(ip, listener.port()).to_string();
        let authority = text
            .parse()
            .unwrap_or_else(|_| Authority::from_static("127.0.0.1:5000"));
        Self { authority, tls }
    }

    /// Returns the address at which `pierhead serve` listens by default.
    pub fn default_listener() -> Self {
        Self {
            authority: Authority::from_static("127.0.0.1:5000"),
            tls: false,
        }
    }

    /// Returns `host` or `host:port`, in the form in which image names contain it.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Returns the host. An IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host)
    }

    /// Returns the port to which clients connect.
    pub fn port(&self) -> u16 {
        let default = if self.tls { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(default)
    }

    /// Whether the scheme is https.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Whether the address is a loopback address. Clients connect to a loopback address without
    /// TLS.
    pub fn is_loopback(&self) -> bool {
        self.host() == "localhost"
            || self
                .host()
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.is_loopback())
    }

    /// Whether `url` is this address, with or without a final slash.
    pub fn matches(&self, url: &str) -> bool {
        url.trim_end_matches('/')
            .eq_ignore_ascii_case(&self.to_string())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let wrong = || InvalidAddress;
        let has_scheme = text.contains("://");
        let url = match has_scheme {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?.clone();
        let plain = !authority.as_str().contains(['@', '"', '\'', '\\'])
            && !authority.host().is_empty()
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none();
        // Compares the lengths of the texts, because `port_u16` also returns `None` for a port that
        // is out of range.
        let has_port = authority.as_str().len() > authority.host().len();
        if !plain || has_port && authority.port_u16().is_none() {
            return Err(wrong());
        }
        // A host alone means the default port of pierhead. A URL has the port of its scheme.
        let authority = match has_scheme || has_port {
            true => authority,
            false => format!("{authority}:{DEFAULT_PORT}")
                .parse()
                .map_err(|_| wrong())?,
        };
        Ok(Self { authority, tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_without_path_and_user_are_parsed() {
        for (text, url, loopback, port) in [
            ("10.0.0.1:5000", "http://10.0.0.1:5000", false, 5000),
            (
                "http://127.0.0.1:5000/",
                "http://127.0.0.1:5000",
                true,
                5000,
            ),
            (
                "https://pierhead.example",
                "https://pierhead.example",
                false,
                443,
            ),
            ("http://[::1]:5000", "http://[::1]:5000", true, 5000),
            ("localhost:80", "http://localhost:80", true, 80),
            // A host alone has the default port of pierhead, not that of HTTP.
            ("10.0.0.1", "http://10.0.0.1:5000", false, 5000),
            (
                "pierhead.example/",
                "http://pierhead.example:5000",
                false,
                5000,
            ),
            ("[::1]", "http://[::1]:5000", true, 5000),
            // A URL has the port of its scheme.
            (
                "http://pierhead.example",
                "http://pierhead.example",
                false,
                80,
            ),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), url);
            assert_eq!((address.is_loopback(), address.port()), (loopback, port));
            assert!(address.matches(&format!("{url}/")));
        }
        for text in [
            "",
            "ftp://a:1",
            "http://",
            "http://a:1/b",
            "http://u@a:1",
            "a b",
            "a:99999",
            "a\"b:1",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_unspecified_listener_address_becomes_loopback() {
        let of =
            |text: &str| Address::of_listener(text.parse().expect("an address"), false).to_string();
        assert_eq!(of("0.0.0.0:5000"), "http://127.0.0.1:5000");
        assert_eq!(of("[::]:5000"), "http://127.0.0.1:5000");
        assert_eq!(of("[fe80::1]:5000"), "http://[fe80::1]:5000");
    }
}
