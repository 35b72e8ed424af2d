//! A network interface of this machine as it is now.

use std::io;
use std::net::{IpAddr, UdpSocket};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// An interface as it is now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) exists: bool,
    pub(crate) up: bool,
    /// All but link-local ones, which no image's name can hold.
    pub(crate) addresses: Vec<IpAddr>,
    /// Those of them that can be bound: not still looked for on the link, and not another machine's.
    pub(crate) usable: Vec<IpAddr>,
    /// All interfaces of the machine.
    pub(crate) all: Vec<String>,
}

/// Which family has no address.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lacking {
    Ipv4,
    Any,
}

/// Each address of this machine with the interface that has it.
///
/// # Errors
/// The system's: a sandbox without AF_NETLINK.
pub(crate) fn all_addresses() -> io::Result<Vec<(IpAddr, String)>> {
    let own = |entry: InterfaceAddress| Some((ip_of(&entry.address?)?, entry.interface_name));
    Ok(getifaddrs()?.filter_map(own).collect())
}

impl Interface {
    /// Blocks for some microseconds.
    ///
    /// # Errors
    /// As [`all_addresses`].
    pub(crate) fn see(name: &str) -> io::Result<Self> {
        let mut seen = Self::default();
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
            let Some(ip) = entry.address.as_ref().and_then(ip_of) else {
                continue;
            };
            if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
                continue;
            }
            seen.addresses.push(ip);
            // The kernel refuses one that is tentative, or that another machine turned out to have.
            if UdpSocket::bind((ip, 0)).is_ok() {
                seen.usable.push(ip);
            }
        }
        Ok(seen)
    }

    /// Why nobody can listen there, with the mend.
    pub(crate) fn why(&self, name: &str, lacking: &Lacking) -> String {
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

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|it| it.ip().into());
    four.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_seen_and_what_is_not_there_is_told_with_what_is() {
        let lo = Interface::see("lo").unwrap();
        assert!(lo.exists && lo.up, "{lo:?}");
        assert!(
            lo.addresses.contains(&IpAddr::from([127, 0, 0, 1])),
            "{lo:?}"
        );
        let none = Interface::see("none-such").unwrap();
        assert!(!none.exists && none.addresses.is_empty(), "{none:?}");
        let why = none.why("none-such", &Lacking::Ipv4);
        assert!(why.contains("\"none-such\"") && why.contains("lo"), "{why}");
    }
}
