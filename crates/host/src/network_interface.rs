//! The state of a network interface of this host.

use std::io;
use std::net::{IpAddr, UdpSocket};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// The state of one interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NetworkInterface {
    /// The host has such an interface.
    pub exists: bool,
    /// It is up.
    pub up: bool,
    /// Its addresses. Link-local ones are left out, since the name of an image cannot contain them.
    pub addresses: Vec<IpAddr>,
    /// The addresses that can be bound: neither tentative nor duplicate.
    pub usable: Vec<IpAddr>,
    /// The names of all interfaces of the host.
    pub all: Vec<String>,
}

/// The address family that an interface has no address of.
#[derive(Debug, PartialEq, Eq)]
pub enum MissingAddress {
    /// IPv4.
    Ipv4,
    /// Neither IPv4 nor IPv6.
    Any,
}

/// Lists each address of this host with the name of its interface.
///
/// # Errors
/// The system refuses, as in a sandbox without AF_NETLINK.
pub fn all_addresses() -> io::Result<Vec<(IpAddr, String)>> {
    let own = |entry: InterfaceAddress| Some((ip_of(&entry.address?)?, entry.interface_name));
    Ok(getifaddrs()?.filter_map(own).collect())
}

impl NetworkInterface {
    /// Reads the interface `name`. Blocks for some microseconds.
    ///
    /// # Errors
    /// As [`all_addresses`].
    pub fn read(name: &str) -> io::Result<Self> {
        let mut found = Self::default();
        for entry in getifaddrs()? {
            // An IPv4 address may have a label of its own behind the name.
            let own = entry.interface_name.split(':').next().unwrap_or_default();
            if !found.all.iter().any(|known| known == own) {
                found.all.push(own.to_owned());
            }
            if own != name {
                continue;
            }
            found.exists = true;
            found.up |= entry.flags.contains(InterfaceFlags::IFF_UP);
            let Some(ip) = entry.address.as_ref().and_then(ip_of) else {
                continue;
            };
            if matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
                continue;
            }
            found.addresses.push(ip);
            // The kernel refuses one that is tentative, or that another machine turned out to have.
            if UdpSocket::bind((ip, 0)).is_ok() {
                found.usable.push(ip);
            }
        }
        Ok(found)
    }

    /// Explains why no listener can bind there, and what the operator can do.
    pub fn explain(&self, name: &str, lacking: &MissingAddress) -> String {
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
            MissingAddress::Ipv4 => format!(
                "{name} has no IPv4 address that can be listened on: give it one (`ip address add … dev {name}`), or \
                 write \"[::]:PORT\" into listen if it is to have IPv6 alone"
            ),
            MissingAddress::Any => format!(
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
        let lo = NetworkInterface::read("lo").unwrap();
        assert!(lo.exists && lo.up, "{lo:?}");
        assert!(
            lo.addresses.contains(&IpAddr::from([127, 0, 0, 1])),
            "{lo:?}"
        );
        let none = NetworkInterface::read("none-such").unwrap();
        assert!(!none.exists && none.addresses.is_empty(), "{none:?}");
        let why = none.explain("none-such", &MissingAddress::Ipv4);
        assert!(why.contains("\"none-such\"") && why.contains("lo"), "{why}");
    }
}
