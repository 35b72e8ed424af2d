//! What "all addresses" means where an interface is chosen: its own, which may come late and change.
//!
//! Sockets are bound to addresses and not to the device (`SO_BINDTODEVICE`): that takes a capability before Linux
//! 5.7, and what this machine itself sends to such an address comes by `lo`, so that probes would not be answered.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};

use super::listen;
use super::notify::{Notify, State};
use crate::config::{Config, MANAGEMENT};
use crate::exit_code::{ExitError, ExitReason};
use pierhead_host::network_interface::{MissingAddress, NetworkInterface, all_addresses};

/// An interface that comes is noticed so soon, for some microseconds each time.
const LOOK: Duration = Duration::from_millis(200);
/// And while serving, for what changes once a day.
const FOLLOW: Duration = Duration::from_secs(5);
/// An address that was not there at so many looks in a row is gone.
const GONE: u32 = 3;
/// Addresses of `network.interface` that pierhead listens on. Each is a socket.
const MOST: usize = 64;
/// A start waits so long for the interface and its first address.
const INTERFACE_WAIT: Duration = Duration::from_secs(30);
/// For the rest of a start once the interface is there: what the service manager gives a start without one.
const START: Duration = Duration::from_secs(300);

/// The addresses to listen on. Waits for the chosen interface, when there is one, as long as it is allowed to, and has the service manager
/// wait, too.
///
/// # Errors
/// There is no such interface, or it has no address of the kind that is wanted.
pub(super) async fn addresses(config: &Config, notify: &Notify) -> anyhow::Result<Vec<SocketAddr>> {
    let (network, listen) = (&config.network, &config.listen);
    let Some(name) = &network.interface else {
        return Ok(listen.clone());
    };
    let end = Instant::now() + INTERFACE_WAIT;
    let mut is_announced = false;
    loop {
        let seen = look(name.clone()).await?;
        let why = match expand(listen, &seen.usable) {
            Ok(mut addresses) => {
                if is_announced {
                    notify.tell(State::Starting(START));
                }
                if addresses.len() > MOST {
                    tracing::warn!(
                        "{name} has {} addresses: listens on the first {MOST}",
                        addresses.len()
                    );
                    addresses.truncate(MOST);
                }
                tracing::info!("clients come by {name} alone: {}", shown(&addresses));
                return Ok(addresses);
            }
            Err(lacking) => seen.explain(name, &lacking),
        };
        if Instant::now() >= end {
            let waited = humantime::format_duration(INTERFACE_WAIT);
            let key = config.places.of("network.interface");
            let message = format!("{key}: {why} (waited {waited})");
            return Err(ExitError::new(ExitReason::NoInterface, message).into());
        }
        if !is_announced {
            notify.tell(State::Starting(INTERFACE_WAIT + START));
            tracing::info!(
                "waiting up to {} for the interface: {why}",
                humantime::format_duration(INTERFACE_WAIT)
            );
            is_announced = true;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What [`follow`] saw.
pub(super) enum Change {
    Came(SocketAddr, TcpListener),
    Gone(SocketAddr),
}

/// The addresses that pierhead listens on. A restarted [`follow`] goes on with them.
pub(super) type BoundAddresses = Arc<Mutex<Following>>;

/// The addresses at the start: `listen` of the configuration, and those that are `bound` for it.
pub(super) fn bound_addresses(listen: Vec<SocketAddr>, bound: &[SocketAddr]) -> BoundAddresses {
    Arc::new(Mutex::new(Following::new(listen, bound)))
}

/// Sends each address that the interface `name` gets or loses, until the receiver of `changes` is dropped.
pub(super) async fn follow(name: String, bound: BoundAddresses, changes: mpsc::Sender<Change>) {
    let mut following = bound.lock().await;
    let mut ticks = tokio::time::interval(FOLLOW);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // What cannot be seen has not changed.
        let Ok(seen) = look(name.clone()).await else {
            continue;
        };
        for address in following.gone(&seen) {
            tracing::info!("{name} lost an address: no longer listens on {address}");
            if changes.send(Change::Gone(address)).await.is_err() {
                return;
            }
        }
        for address in following.came(&seen) {
            let listener = match listen::bind(address, true) {
                Ok(listener) => listener,
                Err(error) => {
                    if following.refused.insert(address) {
                        tracing::warn!("{name} has one more address: {error:#}; tried again");
                    }
                    continue;
                }
            };
            following.listens(address);
            tracing::info!("{name} has one more address: listens on {address}, too");
            if changes.send(Change::Came(address, listener)).await.is_err() {
                return;
            }
        }
    }
}

/// What is listened on, and since how many looks it is not there.
pub(super) struct Following {
    listen: Vec<SocketAddr>,
    missing: BTreeMap<SocketAddr, u32>,
    /// Those that could not be bound, which was said.
    refused: BTreeSet<SocketAddr>,
    full: bool,
}

impl Following {
    fn new(listen: Vec<SocketAddr>, bound: &[SocketAddr]) -> Self {
        Self {
            listen,
            missing: bound.iter().map(|address| (*address, 0)).collect(),
            refused: BTreeSet::new(),
            full: false,
        }
    }

    /// Those that the interface has lost, which are forgotten. What was named itself stays.
    fn gone(&mut self, seen: &NetworkInterface) -> Vec<SocketAddr> {
        let named = |address: &SocketAddr| self.listen.contains(address);
        for (address, missing) in &mut self.missing {
            match named(address) || seen.addresses.contains(&address.ip()) {
                true => *missing = 0,
                false => *missing += 1,
            }
        }
        let gone = self.missing.iter().filter(|(_, missing)| **missing >= GONE);
        let gone: Vec<_> = gone.map(|(address, _)| *address).collect();
        self.missing.retain(|_, missing| *missing < GONE);
        self.full &= gone.is_empty();
        gone
    }

    /// Those that it has and that are not listened on yet.
    fn came(&mut self, seen: &NetworkInterface) -> Vec<SocketAddr> {
        let mut new = expand(&self.listen, &seen.usable).unwrap_or_default();
        new.retain(|address| !self.missing.contains_key(address));
        self.refused.retain(|address| new.contains(address));
        let room = MOST.saturating_sub(self.missing.len());
        if new.len() > room && !std::mem::replace(&mut self.full, true) {
            tracing::warn!(
                "the interface has more addresses than the {MOST} that are listened on: not on {}",
                shown(&new[room..])
            );
        }
        new.truncate(room);
        new
    }

    fn listens(&mut self, address: SocketAddr) {
        self.refused.remove(&address);
        self.missing.insert(address, 0);
    }
}

/// An address of the management link that clients can come by: for people, with the fix.
pub(super) async fn management(config: &Config) -> Option<String> {
    let found = tokio::task::spawn_blocking(all_addresses)
        .await
        .ok()?
        .ok()?;
    let (listen, key) = (&config.listen, config.places.of("listen"));
    let all = config.network.interface.is_none();
    let mut on_link = found
        .into_iter()
        .filter(|(_, name)| name.starts_with(MANAGEMENT));
    let (how, ip, name) = on_link.find_map(|(ip, name)| {
        let is_named = listen.iter().any(|address| address.ip() == ip);
        let is_among = |address: &SocketAddr| match address.ip() {
            IpAddr::V4(any) => any.is_unspecified() && ip.is_ipv4(),
            IpAddr::V6(any) => any.is_unspecified(),
        };
        let how = match is_named {
            true => "names",
            false if all && listen.iter().any(is_among) => "stands for all addresses, among them",
            false => return None,
        };
        Some((how, ip, name))
    })?;
    Some(format!(
        "{key} {how} {ip}, which is on {name}: image data starves the consoles there and crawls. Name an address, or \
         the interface (network.interface), of a physical or virtual function or its representor"
    ))
}

async fn look(name: String) -> anyhow::Result<NetworkInterface> {
    let seen = tokio::task::spawn_blocking(move || NetworkInterface::read(&name)).await?;
    seen.context("cannot see the interfaces of this machine (a sandbox without AF_NETLINK?)")
}

/// `listen` with the interface's addresses for "all". `[::]` stands for those of both families, as without an interface,
/// unless the same port has an address of IPv4 to itself.
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

fn shown(addresses: &[SocketAddr]) -> String {
    let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    all.join(" ")
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
            addresses: addresses_of(addresses),
            usable: addresses_of(usable),
            all: Vec::new(),
        }
    }

    #[test]
    fn an_address_is_listened_on_once_it_can_be_and_as_long_as_it_is_there() {
        let [first, late, fixed] = ["192.0.2.1:80", "192.0.2.9:80", "127.0.0.1:80"];
        let mut following =
            Following::new(sockets(&["0.0.0.0:80", fixed]), &sockets(&[first, fixed]));
        let both = seen(&["192.0.2.1", "192.0.2.9"], &["192.0.2.1", "192.0.2.9"]);
        // Offered until it is had: a port may be taken by what is just ending.
        for _ in 0..3 {
            assert_eq!(following.came(&both), sockets(&[late]));
        }
        following.listens(sockets(&[late])[0]);
        assert_eq!(following.came(&both), []);
        // One that cannot be bound at this moment is there all the same, and one look is none.
        let unbound = seen(&["192.0.2.1", "192.0.2.9"], &[]);
        let less = seen(&["192.0.2.1"], &["192.0.2.1"]);
        for look in [
            &unbound, &unbound, &unbound, &less, &less, &both, &less, &less,
        ] {
            assert_eq!(following.gone(look), []);
        }
        assert_eq!(following.gone(&less), sockets(&[late]));
        assert_eq!(following.gone(&less), []);
        // What comes back is new again, and what was named itself never goes.
        assert_eq!(following.came(&both), sockets(&[late]));
        for _ in 0..GONE {
            following.gone(&NetworkInterface::default());
        }
        assert!(following.missing.keys().eq(&sockets(&[fixed])));
    }

    /// Temporary addresses of IPv6 change each day: none is lost for good.
    #[test]
    fn addresses_that_come_and_go_find_room_for_ever() {
        let mut following = Following::new(sockets(&["[::]:80"]), &[]);
        for day in 0..3 * MOST {
            let ip = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::try_from(day).unwrap()]);
            let today = NetworkInterface {
                addresses: vec![ip],
                usable: vec![ip],
                ..NetworkInterface::default()
            };
            let new = following.came(&today);
            assert_eq!(new, [SocketAddr::new(ip, 80)], "day {day}");
            following.listens(new[0]);
            for _ in 0..GONE {
                following.gone(&today);
            }
        }
        // At most so many at once.
        let many = (0..MOST + 9).map(|it| IpAddr::from([192, 0, 2, u8::try_from(it).unwrap()]));
        let many: Vec<_> = many.collect();
        let seen = NetworkInterface {
            usable: many.clone(),
            addresses: many,
            ..NetworkInterface::default()
        };
        assert_eq!(following.came(&seen).len(), MOST - following.missing.len());
    }
}
