//! The SSRF guard: decides which addresses and schemes requests may reach. A client chooses the
//! name of the registry, and no name may make pierhead connect to an internal host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;
use http::uri::Scheme;

/// IPv4 blocks that are not on the public Internet: the blocks of the IANA special-purpose
/// registry, and the metadata address of a cloud.
const NOT_PUBLIC_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // carrier-grade NAT
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // a cloud's metadata, beside link-local
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local, and clouds' metadata
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarks
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, broadcast
];

/// IPv6 blocks within 2000::/3 (global unicast) that are not on the public Internet.
const NOT_PUBLIC_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, Teredo
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

/// Whether an address is on the public Internet. For a translated address, the embedded IPv4
/// address decides.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = u32::from(address);
    !NOT_PUBLIC_V4
        .iter()
        .any(|(block, len)| (bits ^ u32::from(*block)) >> (32 - len) == 0)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        // Mapped, NAT64 (RFC 6052) and 6to4 addresses are public if their embedded IPv4 address is
        // public.
        [0, 0, 0, 0, 0, 0xffff, high, low] => embedded(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Every other address outside of 2000::/3 is loopback, unique local, link-local, multicast
        // or unassigned.
        [first, ..] if first >> 13 != 1 => false,
        _ => {
            let bits = u128::from(address);
            !NOT_PUBLIC_V6
                .iter()
                .any(|(block, len)| (bits ^ u128::from(*block)) >> (128 - len) == 0)
        }
    }
}

/// A host that the configuration names. A host in the configuration may be internal, because the
/// operator trusts the hosts in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TrustedHost {
    /// The name or address of the host in lower case, without brackets.
    host: String,
    /// The port of the host. `None`: every port.
    port: Option<u16>,
    /// Whether plain HTTP to this host is allowed.
    plain_http: bool,
}

/// The targets that requests to one upstream may reach, including redirects and token servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetPolicy {
    trusted: Vec<TrustedHost>,
}

/// The addresses to which the guard allows a request: see [`TargetPolicy::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedAddresses {
    /// The request may go to any address.
    Any,
    /// The request may go to public addresses only.
    Public,
}

impl TargetPolicy {
    /// Trusts the host and port of a URL that the configuration names.
    pub(crate) fn trust_url(&mut self, url: &Uri) {
        if let (Some(host), Some(port)) = (host_of(url), port_of(url)) {
            let plain_http = url.scheme() == Some(&Scheme::HTTP);
            self.trusted.push(TrustedHost {
                host,
                port: Some(port),
                plain_http,
            });
        }
    }

    /// Trusts `host` or `host:port`. If the text starts with `http://`, plain HTTP is allowed
    /// there, too. `None` if `text` has another form.
    #[must_use]
    pub(crate) fn trust_host(&mut self, text: &str) -> Option<()> {
        let plain_http = text.starts_with("http://");
        let rest = text
            .strip_prefix("http://")
            .or(text.strip_prefix("https://"))
            .unwrap_or(text);
        let authority: http::uri::Authority = rest.parse().ok()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let host = bare(authority.host());
        self.trusted.push(TrustedHost {
            host,
            port: authority.port_u16(),
            plain_http,
        });
        Some(())
    }

    /// Returns the addresses to which a request for `uri` may go, or the reason why the request is
    /// forbidden.
    pub(crate) fn check(&self, uri: &Uri) -> Result<AllowedAddresses, String> {
        let host = host_of(uri).ok_or("the URL has no host")?;
        let port = port_of(uri).ok_or("only http and https URLs can be fetched")?;
        let mut matching = self
            .trusted
            .iter()
            .filter(|trusted| trusted.host == host && trusted.port.is_none_or(|own| own == port))
            .peekable();
        let is_trusted = matching.peek().is_some();
        if uri.scheme() != Some(&Scheme::HTTPS) && !matching.any(|trusted| trusted.plain_http) {
            return Err(format!(
                "{host}:{port} needs plain HTTP, which only the configuration can allow"
            ));
        }
        if is_trusted {
            return Ok(AllowedAddresses::Any);
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            if !is_public(address) {
                return Err(no_public_address(&host));
            }
        } else if is_internal_name(&host) || host.contains([':', '%']) {
            // The last pattern matches addresses with a zone. Host names are checked, too: if an
            // HTTPS proxy resolves a name, pierhead does not see the address.
            return Err(no_public_address(&host));
        }
        Ok(AllowedAddresses::Public)
    }
}

/// Whether a name is reserved for internal hosts, or is a form that resolvers parse as an address
/// (`127.1`).
fn is_internal_name(host: &str) -> bool {
    let last = host
        .trim_end_matches('.')
        .rsplit('.')
        .next()
        .unwrap_or_default();
    matches!(last, "localhost" | "local" | "internal")
        || last.starts_with(|c: char| c.is_ascii_digit())
}

/// The error text for an internal address and for a missing name. The text is the same for both,
/// because a client must not learn which internal names exist.
pub(crate) fn no_public_address(host: &str) -> String {
    format!(
        "{host} has no public address, as far as pierhead can see, or its name does not resolve: to allow a private \
         address, name it in addresses or trusted_hosts of an [upstreams] table"
    )
}

/// Returns the host of a URL in lower case and without brackets.
pub(crate) fn host_of(uri: &Uri) -> Option<String> {
    uri.host().filter(|host| !host.is_empty()).map(bare)
}

/// Returns the port of a URL, or the default port of its scheme. `None` for schemes other than http
/// and https.
pub(crate) fn port_of(uri: &Uri) -> Option<u16> {
    match uri.scheme_str() {
        Some("https") => Some(uri.port_u16().unwrap_or(443)),
        Some("http") => Some(uri.port_u16().unwrap_or(80)),
        _ => None,
    }
}

fn bare(host: &str) -> String {
    host.trim_start_matches('[')
        .trim_end_matches(']')
        .to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_allowed() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "168.63.129.15",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::6810:84e5",
            "2001:200::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            assert!(public(text), "{text}");
        }
    }

    #[test]
    fn internal_addresses_are_refused() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:192.168.0.1",
            "::ffff:169.254.169.254",
            "::ffff:100.64.0.1",
            "::ffff:0.0.0.0",
            "::ffff:0:127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::e000:1",
            "2002:a9fe:a9fe::1",
            "2002:6440:1::",
            "64:ff9b::a00:1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:c0a8:101::1",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    fn check(policy: &TargetPolicy, uri: &str) -> Result<AllowedAddresses, String> {
        policy.check(&uri.parse().unwrap())
    }

    #[test]
    fn unconfigured_upstreams_reach_public_https_only() {
        let policy = TargetPolicy::default();
        assert_eq!(
            check(&policy, "https://ghcr.io/v2/"),
            Ok(AllowedAddresses::Public)
        );
        assert_eq!(
            check(&policy, "https://8.8.8.8/"),
            Ok(AllowedAddresses::Public)
        );
        for uri in [
            "http://ghcr.io/v2/",
            "https://127.0.0.1/",
            "https://[::1]:5000/",
            "https://[::ffff:10.0.0.1]/",
            "https://localhost:5000/",
            "https://a.localhost/",
            "https://LOCALHOST./",
            "https://metadata.google.internal/",
            "https://127.1/",
            "https://127.0.0.1./",
            "https://2130706433/",
            "https://017700000001/",
            "https://[::ffff:7f00:1]/",
            "https://[64:ff9b::7f00:1]/",
            "https://[0:0:0:0:0:0:0:1]/",
            "https://0x7f000001/",
            "ftp://ghcr.io/",
            "/v2/",
        ] {
            assert!(check(&policy, uri).is_err(), "{uri}");
        }
    }

    #[test]
    fn a_configured_upstream_reaches_its_own_host_and_port_only() {
        let mut policy = TargetPolicy::default();
        policy.trust_url(&"http://10.1.2.3:5000/prefix".parse().unwrap());
        assert_eq!(
            check(&policy, "http://10.1.2.3:5000/elsewhere"),
            Ok(AllowedAddresses::Any)
        );
        assert_eq!(
            check(&policy, "https://10.1.2.3:5000/"),
            Ok(AllowedAddresses::Any)
        );
        assert_eq!(
            check(&policy, "https://cdn.example.com/"),
            Ok(AllowedAddresses::Public)
        );
        for uri in [
            "http://10.1.2.3:5001/",
            "https://10.1.2.3/",
            "http://10.1.2.4:5000/",
            "http://cdn.example.com/",
        ] {
            assert!(check(&policy, uri).is_err(), "{uri}");
        }
        let mut tls = TargetPolicy::default();
        tls.trust_url(&"https://registry.corp".parse().unwrap());
        assert_eq!(
            check(&tls, "https://Registry.corp:443/"),
            Ok(AllowedAddresses::Any)
        );
        assert!(
            check(&tls, "http://registry.corp:443/").is_err(),
            "no way back to plain HTTP"
        );
    }

    #[test]
    fn trusted_hosts_extend_the_policy() {
        let mut policy = TargetPolicy::default();
        for text in ["minio.corp", "[fd00::1]:9000", "http://10.0.0.9:80"] {
            policy.trust_host(text).unwrap();
        }
        assert_eq!(
            check(&policy, "https://minio.corp:9000/x"),
            Ok(AllowedAddresses::Any)
        );
        assert_eq!(
            check(&policy, "https://[fd00::1]:9000/x"),
            Ok(AllowedAddresses::Any)
        );
        assert_eq!(
            check(&policy, "http://10.0.0.9/x"),
            Ok(AllowedAddresses::Any)
        );
        assert!(check(&policy, "http://minio.corp/x").is_err());
        assert!(check(&policy, "https://[fd00::1]/x").is_err());
        for text in ["", "user@host", "a b", "http://"] {
            assert!(policy.trust_host(text).is_none(), "{text:?}");
        }
    }
}
