//! Resolves `0.0.0.0` and `[::]` in `listen` to the addresses of `network.interface`, and watches
//! the addresses of the interface for changes.
//!
//! pierhead binds sockets to addresses, and not to the device of the interface (`SO_BINDTODEVICE`),
//! for two reasons. Before Linux 5.7, `SO_BINDTODEVICE` needs a capability. Also, packets from this
//! host to its own address arrive on the device `lo`, so local probes would fail.

#![expect(
    clippy::disallowed_types,
    reason = "one task holds the lock as long as it runs; the next task begins after a panic of this task"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};

use super::bind;
use super::service_manager::{ServiceManager, State};
use crate::cli::exit_code::{ExitError, ExitReason};
use crate::config::{Config, MANAGEMENT};
use pierhead_host::network_interface::{MissingAddress, NetworkInterface, all_addresses};

/// Interval at which a starting daemon reads the addresses of `network.interface`. One read of the
/// addresses takes some microseconds.
const START_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the running daemon reads the addresses of the interface. Addresses change
/// about once a day.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Number of consecutive reads in which an address must be missing before pierhead closes the
/// listener of this address.
const MAX_MISSED_READS: u32 = 3;
/// Maximum number of addresses of `network.interface` that pierhead listens on. Each address takes
/// one socket.
const MAX_ADDRESSES: usize = 64;
/// Maximum time that a start waits for the interface and its first address.
const INTERFACE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that the service manager grants the rest of a start after the interface has an address. The
/// time equals `TimeoutStartSec` of the systemd unit.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// Returns the addresses on which pierhead listens for clients. With `network.interface`, waits up
/// to [`INTERFACE_TIMEOUT`] for the interface and asks the service manager to wait as well.
///
/// # Errors
/// The interface does not exist, or has no address of a family that `listen` needs.
pub(super) async fn listen_addresses(
    config: &Config,
    service_manager: &ServiceManager,
) -> anyhow::Result<Vec<SocketAddr>> {
    let (network, listen) = (&config.network, &config.listen);
    let Some(name) = &network.interface else {
        return Ok(listen.clone());
    };
    let deadline = Instant::now() + INTERFACE_TIMEOUT;
    let mut is_waiting = false;
    loop {
        let seen = read_interface(name.clone()).await?;
        let why = match expand(listen, &seen.usable) {
            Ok(mut addresses) => {
                if is_waiting {
                    service_manager.notify(State::Starting(START_TIMEOUT));
                }
                if addresses.len() > MAX_ADDRESSES {
                    tracing::warn!(
                        "{name} has {} addresses: pierhead listens on the first {MAX_ADDRESSES}",
                        addresses.len()
                    );
                    addresses.truncate(MAX_ADDRESSES);
                }
                tracing::info!(
                    "listening only on the addresses of {name}: {}",
                    joined(&addresses)
                );
                return Ok(addresses);
            }
            Err(lacking) => seen.explain(name, &lacking),
        };
        if Instant::now() >= deadline {
            let waited = humantime::format_duration(INTERFACE_TIMEOUT);
            let key = config.key_locations.describe("network.interface");
            let message = format!("{key}: {why} (waited {waited})");
            return Err(ExitError::new(ExitReason::NoInterface, message).into());
        }
        if !is_waiting {
            service_manager.notify(State::Starting(INTERFACE_TIMEOUT + START_TIMEOUT));
            tracing::info!(
                "waiting up to {} for the interface: {why}",
                humantime::format_duration(INTERFACE_TIMEOUT)
            );
            is_waiting = true;
        }
        tokio::time::sleep(START_POLL_INTERVAL).await;
    }
}

/// A change of the addresses that [`watch`] found.
pub(super) enum AddressChange {
    Added(SocketAddr, TcpListener),
    Removed(SocketAddr),
}

/// The state of [`watch`]. The caller shares this state with the task, so that the state survives a
/// restart of the task after a panic.
pub(super) type SharedAddresses = Arc<Mutex<WatchedAddresses>>;

/// Returns the state at the start of the daemon: `listen` of the configuration, and the addresses
/// that are bound for it.
pub(super) fn watched_addresses(listen: Vec<SocketAddr>, bound: &[SocketAddr]) -> SharedAddresses {
    Arc::new(Mutex::new(WatchedAddresses::new(listen, bound)))
}

/// Sends each address that the interface `name` gets or loses, until the receiver of `changes` is
/// dropped.
pub(super) async fn watch(
    name: String,
    addresses: SharedAddresses,
    changes: mpsc::Sender<AddressChange>,
) {
    let mut watched = addresses.lock().await;
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // If the read failed, pierhead keeps listening on the same addresses.
        let Ok(seen) = read_interface(name.clone()).await else {
            continue;
        };
        for address in watched.removed(&seen) {
            tracing::info!("{name} lost an address: closed the listener on {address}");
            if changes.send(AddressChange::Removed(address)).await.is_err() {
                return;
            }
        }
        for address in watched.added(&seen) {
            let listener = match bind::bind(address, true) {
                Ok(listener) => listener,
                Err(error) => {
                    if watched.failed.insert(address) {
                        tracing::warn!("{name} has one more address: {error:#}; pierhead retries");
                    }
                    continue;
                }
            };
            watched.mark_bound(address);
            tracing::info!("{name} has one more address: also listening on {address}");
            if changes
                .send(AddressChange::Added(address, listener))
                .await
                .is_err()
            {
                return;
            }
        }
    }
}

/// The addresses on which pierhead listens for clients.
pub(super) struct WatchedAddresses {
    /// Value of `listen` in the configuration.
    listen: Vec<SocketAddr>,
    /// Each bound address, with the number of the latest consecutive reads in which the interface
    /// did not have this address.
    missed_reads: BTreeMap<SocketAddr, u32>,
    /// Addresses that pierhead could not bind. Each of these addresses is logged once.
    failed: BTreeSet<SocketAddr>,
    /// Whether the warning about [`MAX_ADDRESSES`] has been logged.
    is_full: bool,
}

impl WatchedAddresses {
    fn new(listen: Vec<SocketAddr>, bound: &[SocketAddr]) -> Self {
        Self {
            listen,
            missed_reads: bound.iter().map(|address| (*address, 0)).collect(),
            failed: BTreeSet::new(),
            is_full: false,
        }
    }

    /// Removes and returns the addresses that the interface has lost. Keeps addresses that the key
    /// `listen` names.
    fn removed(&mut self, seen: &NetworkInterface) -> Vec<SocketAddr> {
        let is_named = |address: &SocketAddr| self.listen.contains(address);
        for (address, missed) in &mut self.missed_reads {
            match is_named(address) || seen.addresses.contains(&address.ip()) {
                true => *missed = 0,
                false => *missed += 1,
            }
        }
        let removed = self.missed_reads.iter();
        let removed = removed.filter(|(_, missed)| **missed >= MAX_MISSED_READS);
        let removed: Vec<_> = removed.map(|(address, _)| *address).collect();
        self.missed_reads
            .retain(|_, missed| *missed < MAX_MISSED_READS);
        self.is_full &= removed.is_empty();
        removed
    }

    /// Returns the addresses of the interface that pierhead does not listen on yet.
    fn added(&mut self, seen: &NetworkInterface) -> Vec<SocketAddr> {
        let mut new = expand(&self.listen, &seen.usable).unwrap_or_default();
        new.retain(|address| !self.missed_reads.contains_key(address));
        self.failed.retain(|address| new.contains(address));
        let room = MAX_ADDRESSES.saturating_sub(self.missed_reads.len());
        if new.len() > room && !std::mem::replace(&mut self.is_full, true) {
            tracing::warn!(
                "pierhead listens on {MAX_ADDRESSES} addresses of the interface at most: not on {}",
                joined(&new[room..])
            );
        }
        new.truncate(room);
        new
    }

    fn mark_bound(&mut self, address: SocketAddr) {
        self.failed.remove(&address);
        self.missed_reads.insert(address, 0);
    }
}

/// If pierhead listens on an address of a DPU's management link, returns a warning with its fix.
pub(super) async fn management_link_warning(config: &Config) -> Option<String> {
    let found = tokio::task::spawn_blocking(all_addresses)
        .await
        .ok()?
        .ok()?;
    let (listen, key) = (&config.listen, config.key_locations.describe("listen"));
    let is_any_interface = config.network.interface.is_none();
    let mut on_link = found
        .into_iter()
        .filter(|(_, name)| name.starts_with(MANAGEMENT));
    let (how, ip, name) = on_link.find_map(|(ip, name)| {
        let is_named = listen.iter().any(|address| address.ip() == ip);
        let is_wildcard_of = |address: &SocketAddr| match address.ip() {
            IpAddr::V4(wildcard) => wildcard.is_unspecified() && ip.is_ipv4(),
            IpAddr::V6(wildcard) => wildcard.is_unspecified(),
        };
        let how = match is_named {
            true => "names",
            false if is_any_interface && listen.iter().any(is_wildcard_of) => "includes",
            false => return None,
        };
        Some((how, ip, name))
    })?;
    Some(format!(
        "{key} {how} {ip}, which is on {name}: image data on this management link is slow and starves the consoles. Set listen to an address, or \
         network.interface to the name, of a physical or virtual function or its representor"
    ))
}

async fn read_interface(name: String) -> anyhow::Result<NetworkInterface> {
    let seen = tokio::task::spawn_blocking(move || NetworkInterface::read(&name)).await?;
    seen.context("cannot read the interfaces of this host (a sandbox without AF_NETLINK?)")
}

/// Replaces `0.0.0.0` and `[::]` in `listen` by the addresses of the interface. `[::]` stands for
/// the IPv4 and the IPv6 addresses, as it does without `network.interface`.
fn expand(listen: &[SocketAddr], own: &[IpAddr]) -> Result<Vec<SocketAddr>, MissingAddress> {
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
                SocketAddr::V4(_) => MissingAddress::Ipv4,
                SocketAddr::V6(_) => MissingAddress::Any,
            });
        }
        for ip in found {
            let one = SocketAddr::new(ip, address.port());
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    Ok(all)
}

fn joined(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    all.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|it| it.parse().unwrap()).collect()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|it| it.parse().unwrap()).collect()
    }

    #[test]
    fn a_wildcard_stands_for_the_addresses_of_the_interface() {
        let own = ips(&["192.0.2.1", "2001:db8::1", "192.0.2.9"]);
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
        let six = ips(&["2001:db8::1"]);
        assert_eq!(
            expand(&sockets(&["0.0.0.0:1"]), &six),
            Err(MissingAddress::Ipv4)
        );
        assert_eq!(expand(&sockets(&["[::]:1"]), &[]), Err(MissingAddress::Any));
    }

    fn seen(addresses: &[&str], usable: &[&str]) -> NetworkInterface {
        NetworkInterface {
            exists: true,
            up: true,
            addresses: ips(addresses),
            usable: ips(usable),
            all: Vec::new(),
        }
    }

    #[test]
    fn a_listener_opens_and_closes_with_the_address_of_the_interface() {
        let [first, late, fixed] = ["192.0.2.1:80", "192.0.2.9:80", "127.0.0.1:80"];
        let mut watched =
            WatchedAddresses::new(sockets(&["0.0.0.0:80", fixed]), &sockets(&[first, fixed]));
        let both = seen(&["192.0.2.1", "192.0.2.9"], &["192.0.2.1", "192.0.2.9"]);
        // `added` returns an address again until the address is bound, since another process may
        // still use the port.
        for _ in 0..3 {
            assert_eq!(watched.added(&both), sockets(&[late]));
        }
        watched.mark_bound(sockets(&[late])[0]);
        assert_eq!(watched.added(&both), []);
        // An address that cannot be bound still counts as present. Also, one missed read closes no
        // listener.
        let unbound = seen(&["192.0.2.1", "192.0.2.9"], &[]);
        let less = seen(&["192.0.2.1"], &["192.0.2.1"]);
        for look in [
            &unbound, &unbound, &unbound, &less, &less, &both, &less, &less,
        ] {
            assert_eq!(watched.removed(look), []);
        }
        assert_eq!(watched.removed(&less), sockets(&[late]));
        assert_eq!(watched.removed(&less), []);
        // An address that the interface gets back is added again. An address that `listen` names is
        // never removed.
        assert_eq!(watched.added(&both), sockets(&[late]));
        for _ in 0..MAX_MISSED_READS {
            watched.removed(&NetworkInterface::default());
        }
        assert!(watched.missed_reads.keys().eq(&sockets(&[fixed])));
    }

    /// Temporary IPv6 addresses change each day, so addresses that the interface has lost must not
    /// count towards the maximum.
    #[test]
    fn removed_addresses_leave_room_for_new_ones() {
        let mut watched = WatchedAddresses::new(sockets(&["[::]:80"]), &[]);
        for day in 0..3 * MAX_ADDRESSES {
            let ip = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::try_from(day).unwrap()]);
            let today = NetworkInterface {
                addresses: vec![ip],
                usable: vec![ip],
                ..NetworkInterface::default()
            };
            let new = watched.added(&today);
            assert_eq!(new, [SocketAddr::new(ip, 80)], "day {day}");
            watched.mark_bound(new[0]);
            for _ in 0..MAX_MISSED_READS {
                watched.removed(&today);
            }
        }
        // At most `MAX_ADDRESSES` addresses are added at the same time.
        let many =
            (0..MAX_ADDRESSES + 9).map(|it| IpAddr::from([192, 0, 2, u8::try_from(it).unwrap()]));
        let many: Vec<_> = many.collect();
        let seen = NetworkInterface {
            usable: many.clone(),
            addresses: many,
            ..NetworkInterface::default()
        };
        assert_eq!(
            watched.added(&seen).len(),
            MAX_ADDRESSES - watched.missed_reads.len()
        );
    }
}
