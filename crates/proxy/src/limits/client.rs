//! One client, as far as an address tells clients apart.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::Limit;

/// An IPv4 address, or the /64 of an IPv6 one: whoever has one address of a /64 has them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prefix(IpAddr);

impl Prefix {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & (u128::MAX << 64);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            v4 => v4,
        })
    }
}

/// What it takes at the moment. Held by its connections and by what goes on for it.
#[derive(Debug)]
pub(crate) struct Client {
    connections: AtomicUsize,
    /// Downloads and questions to upstreams that are under way or wait, by its request.
    pub(super) fetches: AtomicUsize,
    /// Bytes of its answers in memory.
    pub(super) held: AtomicUsize,
    /// Downloads for it at the same time.
    pub(super) turns: Arc<Semaphore>,
    pub(super) unlimited: bool,
}

impl Client {
    pub(crate) fn new(turns: usize) -> Self {
        Self {
            connections: AtomicUsize::new(0),
            fetches: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            turns: Arc::new(Semaphore::new(turns.clamp(1, Semaphore::MAX_PERMITS))),
            unlimited: false,
        }
    }

    pub(crate) fn unlimited() -> Self {
        Self {
            unlimited: true,
            ..Self::new(Semaphore::MAX_PERMITS)
        }
    }

    pub(super) fn connect(self: &Arc<Self>, most: usize) -> Result<Connected, Limit> {
        let counted = Connected(self.clone());
        // Whoever is refused is counted off again by the drop.
        if self.connections.fetch_add(1, Ordering::Relaxed) >= most {
            return Err(Limit::ConnectionsPerClient);
        }
        Ok(counted)
    }
}

/// One connection, counted until this is dropped.
pub(crate) struct Connected(Arc<Client>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_client_are_one() {
        let of = |text: &str| Prefix::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::3"), of("2001:db8:1:3::3"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }

    #[test]
    fn a_connection_that_is_refused_or_ended_no_longer_counts() {
        let client = Arc::new(Client::new(1));
        let kept = client.connect(2).ok();
        let ended = client.connect(2).ok();
        for _ in 0..3 {
            assert!(client.connect(2).is_err());
        }
        drop(ended);
        assert!(client.connect(2).is_ok());
        drop(kept);
        assert_eq!(client.connections.load(Ordering::Relaxed), 0);
    }
}
