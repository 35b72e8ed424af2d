//! What "all addresses" means where an interface is chosen: its own, which may come late and change.
//!
//! Sockets are bound to addresses and not to the device (`SO_BINDTODEVICE`): that takes a capability before Linux
//! 5.7, and what this machine itself sends to such an address comes by `lo`, so that probes would not be answered.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::config::{MANAGEMENT, Network};
use crate::failure::{Exit, Told};

/// An interface that comes is noticed so soon, for some microseconds each time.
const LOOK: Duration = Duration::from_millis(200);
/// And while serving, for what changes once a day.
pub(super) const FOLLOW: Duration = Duration::from_secs(5);
/// Each is a listening socket.
const MOST: usize = 64;

/// An interface as it is now.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    exists: bool,
    up: bool,
    /// Those that can be bound: neither link-local, which no image's name can hold, nor still looked for on the link.
    addresses: Vec<IpAddr>,
    /// All interfaces of the machine.
    all: Vec<String>,
}

/// Which family has no address.
#[derive(Debug, PartialEq, Eq)]
enum Lacking {
    Ipv4,
    Any,
}

/// The addresses to listen on. Waits for the chosen interface, when there is one, as long as it is allowed to.
///
/// # Errors
/// There is no such interface, or it has no address of the kind that is wanted.
pub(super) async fn addresses(
    network: &Network,
    listen: &[SocketAddr],
) -> anyhow::Result<Vec<SocketAddr>> {
    let Some(name) = &network.interface else {
        return Ok(listen.to_vec());
    };
    let end = Instant::now() + network.wait;
    let mut said = false;
    loop {
        let seen = look(name.clone()).await?;
        let why = match expand(listen, &seen.addresses) {
            Ok(addresses) => {
                tracing::info!("clients come by {name} alone: {}", shown(&addresses));
                return Ok(addresses);
            }
            Err(lacking) => seen.why(name, &lacking),
        };
        if Instant::now() >= end {
            let waited = humantime::format_duration(network.wait);
            let message = format!("network.interface: {why} (waited {waited}: network.wait)");
            return Err(Told::new(Exit::NoInterface, message).into());
        }
        if !said {
            tracing::info!(
                "waiting up to {} for the interface: {why}",
                humantime::format_duration(network.wait)
            );
            said = true;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What is to be listened on by now and is not among `known`, which it is added to.
pub(super) async fn added(
    network: &Network,
    listen: &[SocketAddr],
    known: &mut Vec<SocketAddr>,
) -> Vec<SocketAddr> {
    let Some(name) = &network.interface else {
        return Vec::new();
    };
    let Ok(seen) = look(name.clone()).await else {
        return Vec::new();
    };
    let mut added = expand(listen, &seen.addresses).unwrap_or_default();
    added.retain(|address| !known.contains(address));
    added.truncate(MOST.saturating_sub(known.len()));
    known.extend(&added);
    added
}

/// An address of the management link that was asked for by itself: for people, with the mend.
pub(super) async fn management(listen: &[SocketAddr]) -> Option<String> {
    let found = || -> Option<Vec<_>> {
        let own = |entry: InterfaceAddress| Some((ip_of(&entry.address?)?, entry.interface_name));
        Some(getifaddrs().ok()?.filter_map(own).collect())
    };
    let found = tokio::task::spawn_blocking(found).await.ok()??;
    let (ip, name) = found.into_iter().find(|(ip, name)| {
        name.starts_with(MANAGEMENT) && listen.iter().any(|address| address.ip() == *ip)
    })?;
    Some(format!(
        "listen names {ip}, which is on {name}: image data starves the consoles there and crawls. Name an address, or \
         the interface (network.interface), of a physical or virtual function or its representor"
    ))
}

async fn look(name: String) -> anyhow::Result<Seen> {
    let seen = tokio::task::spawn_blocking(move || see(&name)).await?;
    seen.context("cannot see the interfaces of this machine (a sandbox without AF_NETLINK?)")
}

fn see(name: &str) -> io::Result<Seen> {
    let mut seen = Seen::default();
    for entry in getifaddrs()? {
        // An IPv4 address may have a label of its own behind the name.
        let own = entry.interface_name.split(':').next().unwrap_or_default();
        if !seen.all.iter().any(|known| known == own) {
            seen.all.push(own.to_owned());
        }
        if own != name {
            continue;
        }
        seen.exists = true;
        seen.up |= entry.flags.contains(InterfaceFlags::IFF_UP);
        let Some(address) = entry.address else {
            continue;
        };
        seen.addresses
            .extend(ip_of(&address).filter(|&ip| is_usable(ip)));
    }
    Ok(seen)
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|it| it.ip().into());
    four.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
}

fn is_usable(ip: IpAddr) -> bool {
    let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    // The kernel refuses one that is tentative, or that another machine turned out to have.
    !link_local && UdpSocket::bind((ip, 0)).is_ok()
}

/// `listen` with the interface's addresses for "all". `[::]` stands for those of both families, as without an interface,
/// unless the same port has an address of IPv4 to itself.
fn expand(listen: &[SocketAddr], own: &[IpAddr]) -> Result<Vec<SocketAddr>, Lacking> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in listen {
        let found: Vec<_> = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => {
                own.iter().copied().filter(IpAddr::is_ipv4).collect()
            }
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => own.to_vec(),
            fixed => vec![fixed],
        };
        if found.is_empty() {
            return Err(match address {
                SocketAddr::V4(_) => Lacking::Ipv4,
                SocketAddr::V6(_) => Lacking::Any,
            });
        }
        for ip in found {
            let one = SocketAddr::new(ip, address.port());
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    all.truncate(MOST);
    Ok(all)
}

fn shown(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    all.join(" ")
}

impl Seen {
    fn why(&self, name: &str, lacking: &Lacking) -> String {
        if !self.exists {
            return format!(
                "there is no interface {name:?} here, but {}: name one of these (in a pod without the node's network there \
                 are only the pod's own)",
                self.all.join(", ")
            );
        }
        if !self.up {
            return format!("{name} is down: `ip link set {name} up`");
        }
        match lacking {
            Lacking::Ipv4 => format!(
                "{name} has no IPv4 address that can be listened on: give it one (`ip address add … dev {name}`), or \
                 write \"[::]:PORT\" into listen if it is to have IPv6 alone"
            ),
            Lacking::Any => format!(
                "{name} has no address that can be listened on, and link-local ones do not count: give it one \
                 (`ip address add … dev {name}`)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(words: &[&str]) -> Vec<SocketAddr> {
        words.iter().map(|it| it.parse().unwrap()).collect()
    }

    fn addresses_of(words: &[&str]) -> Vec<IpAddr> {
        words.iter().map(|it| it.parse().unwrap()).collect()
    }

    #[test]
    fn all_addresses_are_those_of_the_interface() {
        let own = addresses_of(&["192.0.2.1", "2001:db8::1", "192.0.2.9"]);
        for (listen, expected) in [
            (
                &["0.0.0.0:5000"][..],
                &["192.0.2.1:5000", "192.0.2.9:5000"][..],
            ),
            (
                &["[::]:5000"],
                &["192.0.2.1:5000", "[2001:db8::1]:5000", "192.0.2.9:5000"],
            ),
            (
                &["127.0.0.1:5000", "0.0.0.0:80", "192.0.2.9:80"],
                &["127.0.0.1:5000", "192.0.2.1:80", "192.0.2.9:80"],
            ),
        ] {
            assert_eq!(expand(&sockets(listen), &own), Ok(sockets(expected)));
        }
        let six = addresses_of(&["2001:db8::1"]);
        assert_eq!(expand(&sockets(&["0.0.0.0:1"]), &six), Err(Lacking::Ipv4));
        assert_eq!(expand(&sockets(&["[::]:1"]), &[]), Err(Lacking::Any));
    }

    #[test]
    fn loopback_is_seen_and_what_is_not_there_is_told_with_what_is() {
        let lo = see("lo").unwrap();
        assert!(lo.exists && lo.up, "{lo:?}");
        assert!(
            lo.addresses.contains(&IpAddr::from([127, 0, 0, 1])),
            "{lo:?}"
        );
        let none = see("none-such").unwrap();
        assert!(!none.exists && none.addresses.is_empty(), "{none:?}");
        let why = none.why("none-such", &Lacking::Ipv4);
        assert!(why.contains("\"none-such\"") && why.contains("lo"), "{why}");
    }
}
