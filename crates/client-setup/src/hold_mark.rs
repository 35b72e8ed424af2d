//! A mark by which other processes, such as container probes, see that a `pierhead setup --hold`
//! process is running.
//!
//! The mark is an abstract Unix socket. Unlike a file, such a socket disappears when its process
//! ends.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::client::Client;
use crate::config_root::ConfigRoot;
use crate::error::Error;

/// Marks the setup of one client below one root folder as held, until this value is dropped. Only
/// processes in the same network namespace can see the mark.
#[derive(Debug)]
pub struct HoldMark {
    _socket: UnixDatagram,
}

impl HoldMark {
    /// Creates the mark.
    ///
    /// # Errors
    /// [`Error::Hold`] if another process holds the same setup.
    pub fn create(client: Client, root: &ConfigRoot) -> Result<Self, Error> {
        let bound = address(client, root).and_then(|it| UnixDatagram::bind_addr(&it));
        let socket = bound.map_err(|source| Error::Hold { client, source })?;
        Ok(Self { _socket: socket })
    }
}

/// Whether a process in this network namespace holds the setup of this client.
///
/// # Errors
/// Errors of the operating system.
pub fn is_held(client: Client, root: &ConfigRoot) -> io::Result<bool> {
    match UnixDatagram::unbound()?.connect_addr(&address(client, root)?) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the socket address for a client and root folder. The address contains a hash of the
/// root, because a name has at most 107 bytes, and a path may be longer.
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
    fn a_setup_is_held_until_the_mark_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = ConfigRoot::system(folder.path());
        let held_now = || is_held(Client::Containerd, &root).expect("an answer");
        assert!(!held_now());
        let mark = HoldMark::create(Client::Containerd, &root).expect("held");
        assert!(held_now());
        assert!(!is_held(Client::Crio, &root).expect("an answer"));
        let other = ConfigRoot::system(&folder.path().join("other"));
        assert!(!is_held(Client::Containerd, &other).expect("an answer"));
        assert!(
            HoldMark::create(Client::Containerd, &root).is_err(),
            "held twice"
        );
        drop(mark);
        assert!(!held_now());
    }
}
