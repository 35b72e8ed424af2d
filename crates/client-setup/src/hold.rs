//! A mark that a process holds a setup, for probes of containers.
//!
//! The mark is an abstract Unix socket: unlike a file, it ends with its process.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::error::Error;

/// Marks the setup of one client below one root as held, until it is dropped. Only processes of the
/// same network namespace see the mark.
#[derive(Debug)]
pub struct Hold {
    _socket: UnixDatagram,
}

impl Hold {
    /// Sets the mark.
    ///
    /// # Errors
    /// [`Error::Hold`] when another process holds the same setup.
    pub fn begin(client: Client, root: &ConfigRoot) -> Result<Self, Error> {
        let bound = address(client, root).and_then(|it| UnixDatagram::bind_addr(&it));
        let socket = bound.map_err(|source| Error::Hold { client, source })?;
        Ok(Self { _socket: socket })
    }
}

/// Whether a process of this network namespace holds the setup.
///
/// # Errors
/// Any of the system.
pub fn is_held(client: Client, root: &ConfigRoot) -> io::Result<bool> {
    match UnixDatagram::unbound()?.connect_addr(&address(client, root)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// One address for each client and root. The name has room for 107 bytes, and a path may be longer.
fn address(client: Client, root: &ConfigRoot) -> io::Result<SocketAddr> {
    let mut hasher = DefaultHasher::new();
    root.root().hash(&mut hasher);
    let name = format!("pierhead-setup-{}-{:016x}", client.name(), hasher.finish());
    SocketAddr::from_abstract_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let asked = || is_held(Client::Containerd, &root).expect("an answer");
        assert!(!asked());
        let held = Hold::begin(Client::Containerd, &root).expect("held");
        assert!(asked());
        assert!(!is_held(Client::Crio, &root).expect("an answer"));
        let other = ConfigRoot::system(&folder.path().join("other"));
        assert!(!is_held(Client::Containerd, &other).expect("an answer"));
        assert!(
            Hold::begin(Client::Containerd, &root).is_err(),
            "held twice"
        );
        drop(held);
        assert!(!asked());
    }
}
