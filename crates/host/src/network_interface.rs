//! Reads the state of a network interface of this host: whether it is up, and its addresses.

use std::io;
use std::net::{IpAddr, UdpSocket};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

/// The state of one network interface.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Whether the host has an interface with the requested name.
    pub exists: bool,
    /// Whether the interface is up.
    pub up: bool,
    /// The addresses of the interface. Link-local addresses are omitted, because the name of an
    /// image cannot contain them.
    pub addresses: Vec<IpAddr>,
    /// The addresses to which a listener can bind: addresses that are neither tentative nor
    /// duplicate.
    pub usable: Vec<IpAddr>,
    /// The names of all interfaces of the host.
    pub all: Vec<String>,
}

/// The kind of address that an interface lacks.
#[derive(Debug, PartialEq, Eq)]
pub enum MissingAddress {
    /// The interface has no IPv4 address.
    Ipv4,
    /// The interface has neither an IPv4 nor an IPv6 address.
    Any,
}

/// Lists each address of this host with the name of its interface.
///
/// # Errors
/// The error of the system, for example in a sandbox without AF_NETLINK.
pub fn all_addresses() -> io::Result<Vec<(IpAddr, String)>> {
    let own = |entry: InterfaceAddress| Some((ip_of(&entry.address?)?, entry.interface_name));
    Ok(getifaddrs()?.filter_map(own).collect())
}

impl NetworkInterface {
    /// Reads the state of the interface `name`. Blocks for some microseconds.
    ///
    /// # Errors
    /// The same errors as [`all_addresses`].
    pub fn read(name: &str) -> io::Result<Self> {
        let mut found = Self::default();
        for entry in getifaddrs()? {
            // An IPv4 address may have a label behind the name of the interface (`eth0:1`).
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
            // The kernel refuses to bind to a tentative address, and to an address that another
            // machine has.
            if UdpSocket::bind((ip, 0)).is_ok() {
                found.usable.push(ip);
            }
        }
        Ok(found)
    }

    /// Explains why no listener can bind to the interface, and how the operator fixes that.
    pub fn explain(&self, name: &str, lacking: &MissingAddress) -> String {
        if !self.exists {
            return format!(
                "this host has no interface {name:?}, but {}: name one of these (a pod without the node's network has \
                 only its own interfaces)",
                self.all.join(", ")
            );
        }
        if !self.up {
            return format!("{name} is down: `ip link set {name} up`");
        }
        match lacking {
            MissingAddress::Ipv4 => format!(
                "{name} has no IPv4 address to listen on: add one (`ip address add … dev {name}`), or \
                 write \"[::]:PORT\" into listen for IPv6 only"
            ),
            MissingAddress::Any => format!(
                "{name} has no address to listen on (link-local addresses do not count): add one \
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
    fn loopback_is_found_and_a_missing_interface_is_explained() {
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
