//! Finds upstreams whose address is a listen address of pierhead itself. A request to such an
//! upstream would come back to pierhead until the time limit of the request ends.

use std::net::{IpAddr, SocketAddr};

use pierhead_oci::Registry;

use super::{Config, Upstream};

/// Returns each upstream that points to pierhead itself: the path of its key, and a message.
pub(super) fn self_loops(config: &Config) -> Vec<(String, String)> {
    let named = config.upstreams.iter().map(|(registry, upstream)| {
        let key = format!("upstreams.{registry}");
        let fix = format!("set addresses of [upstreams.\"{registry}\"] to the registry");
        (key, loops_of(config, registry, upstream), fix)
    });
    let default = &config.default_upstream;
    let unnamed = (!config.upstreams.contains_key(default)).then(|| {
        let fix = "set default_upstream to a registry".to_owned();
        let loops = loops_of(config, default, &Upstream::default());
        ("default_upstream".to_owned(), loops, fix)
    });
    let all = named.chain(unnamed);
    all.filter_map(|(key, found, fix)| {
        let (url, listen) = found?;
        let message = format!(
            "{key}: {url} is the address of pierhead itself (listen = {listen}): {fix}, or listen on another port"
        );
        Some((key, message))
    })
    .collect()
}

/// Returns the first URL of an upstream that points to a listen address, with this listen address.
fn loops_of(
    config: &Config,
    registry: &Registry,
    upstream: &Upstream,
) -> Option<(String, SocketAddr)> {
    upstream.urls(registry).into_iter().find_map(|(url, _)| {
        let (host, port) = host_and_port(&url)?;
        let mut listen = config.listen.iter();
        let found = listen.find(|listen| listen.port() == port && accepts(listen.ip(), &host))?;
        Some((url, *found))
    })
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let uri: http::Uri = url.parse().ok()?;
    let default = match uri.scheme_str()? {
        "http" => 80,
        _ => 443,
    };
    let host = uri.host()?.trim_matches(['[', ']']);
    Some((host.to_owned(), uri.port_u16().unwrap_or(default)))
}

/// Whether a listener on `listen` accepts connections to `host`. Knows `localhost` and IP
/// addresses; the address of another name is not known without a lookup.
fn accepts(listen: IpAddr, host: &str) -> bool {
    let listen = listen.to_canonical();
    if host.eq_ignore_ascii_case("localhost") {
        return listen.is_unspecified() || listen.is_loopback();
    }
    let Ok(host) = host.parse::<IpAddr>() else {
        return false;
    };
    let host = host.to_canonical();
    let is_local = host.is_loopback() || host.is_unspecified();
    // A listener on `[::]` also accepts connections over IPv4. A connection to an unspecified
    // address goes to this host.
    let is_same_family = listen.is_ipv6() || host.is_ipv4();
    listen == host
        || listen.is_unspecified() && is_local && is_same_family
        || listen.is_loopback() && host.is_unspecified() && listen.is_ipv4() == host.is_ipv4()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_comes_back_to_pierhead_is_found() {
        for (listen, url, is_loop) in [
            ("0.0.0.0:5000", "http://127.0.0.1:5000", true),
            ("0.0.0.0:5000", "http://127.9.9.9:5000/prefix", true),
            ("0.0.0.0:5000", "http://0.0.0.0:5000", true),
            ("0.0.0.0:5000", "http://LocalHost:5000", true),
            ("0.0.0.0:5000", "http://[::1]:5000", false),
            ("[::]:5000", "http://[::1]:5000", true),
            ("[::]:5000", "http://127.0.0.1:5000", true),
            ("[::ffff:127.0.0.1]:5000", "http://127.0.0.1:5000", true),
            ("127.0.0.1:443", "https://127.0.0.1", true),
            ("127.0.0.1:80", "http://127.0.0.1", true),
            ("127.0.0.1:5000", "http://0.0.0.0:5000", true),
            ("127.0.0.1:5000", "http://127.0.0.2:5000", false),
            ("127.0.0.1:5000", "http://127.0.0.1:5001", false),
            ("127.0.0.1:0", "http://127.0.0.1:5000", false),
            ("10.0.0.1:5000", "http://10.0.0.1:5000", true),
            ("10.0.0.1:5000", "http://localhost:5000", false),
            ("10.0.0.1:5000", "http://registry.example:5000", false),
        ] {
            let mut config = Config::with_data("/data".into());
            config.listen = vec![listen.parse().expect("an address")];
            let upstream = Upstream {
                addresses: vec!["http://registry.example".to_owned(), url.to_owned()],
                ..Upstream::default()
            };
            let registry = "docker.io".parse().expect("a name");
            config.upstreams.insert(registry, upstream);
            let found = self_loops(&config);
            assert_eq!(found.len(), usize::from(is_loop), "{listen} {url}");
            if let [(key, message)] = &found[..] {
                assert_eq!(key, "upstreams.docker.io");
                assert!(message.contains(url) && message.contains("set addresses"));
            }
        }
    }

    #[test]
    fn the_default_upstream_and_the_name_of_an_upstream_can_be_loops() {
        let mut config = Config::with_data("/data".into());
        config.default_upstream = "127.0.0.1:5000".parse().expect("a name");
        let [(key, message)] = &self_loops(&config)[..] else {
            panic!("no loop");
        };
        assert_eq!(key, "default_upstream");
        assert!(message.contains("set default_upstream"), "{message}");
        // A self-loop of an upstream with its own table is one loop, with the key of the table.
        let name = config.default_upstream.clone();
        config.upstreams.insert(name, Upstream::default());
        let [(key, _)] = &self_loops(&config)[..] else {
            panic!("no loop");
        };
        assert_eq!(key, "upstreams.127.0.0.1:5000");
    }
}
