//! Whether somebody holds a setup. A probe asks; a file would outlive a process that is killed, and a socket without one does not.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::Context as _;

use crate::cli::setup::Client;
use crate::setup::Place;

/// It is held until the socket is dropped, as far as processes of the same network see.
pub(super) fn begin(client: Client, place: &Place) -> anyhow::Result<UnixDatagram> {
    let bound = address(client, place).and_then(|it| UnixDatagram::bind_addr(&it));
    bound.with_context(|| format!("cannot hold the setup of {}", client.name()))
}

/// Whether it is.
pub(super) fn is_held(client: Client, place: &Place) -> io::Result<bool> {
    let asked = UnixDatagram::unbound()?.connect_addr(&address(client, place)?);
    match asked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same for the same client below the same root. A name has room for 107 bytes, and a path may be longer.
fn address(client: Client, place: &Place) -> io::Result<SocketAddr> {
    let mut hasher = DefaultHasher::new();
    place.root().hash(&mut hasher);
    let name = format!("pierhead-setup-{}-{:016x}", client.name(), hasher.finish());
    SocketAddr::from_abstract_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_until_it_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::machine(folder.path());
        let asked = || is_held(Client::Containerd, &place).expect("an answer");
        assert!(!asked());
        let held = begin(Client::Containerd, &place).expect("held");
        assert!(asked());
        assert!(!is_held(Client::Crio, &place).expect("an answer"));
        let other = Place::machine(&folder.path().join("other"));
        assert!(!is_held(Client::Containerd, &other).expect("an answer"));
        assert!(begin(Client::Containerd, &place).is_err(), "held twice");
        drop(held);
        assert!(!asked());
    }
}
