//! Limits how many wrong passwords clients at one IP address may try: ten at once, then ten per
//! minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pierhead_host::ClientKey;

/// Penalty time that each guess (an attempt with a password) adds to the client's address. A right
/// password gives the penalty of its guess back.
const GUESS_PENALTY: Duration = Duration::from_secs(6);
/// Maximum penalty time of one address. If a guess would exceed this time, pierhead refuses the
/// guess without verifying the password.
const MAX_PENALTY: Duration = Duration::from_secs(60);
/// Maximum number of addresses with a penalty time for wrong passwords.
const MAX_THROTTLED_ADDRESSES: usize = 4096;

/// For each client, the time at which its penalty ends. Each guess adds [`GUESS_PENALTY`]. A
/// general-purpose cache cannot hold this table, because the addresses with the longest penalties
/// must stay when the table is full.
#[derive(Default)]
pub(crate) struct Throttle(Mutex<HashMap<ClientKey, Instant>>);

impl Throttle {
    /// Adds the penalty of one guess to an address. Called before the password is verified, so that
    /// concurrent guesses are all counted. If the penalty would exceed [`MAX_PENALTY`], adds
    /// nothing and returns `false`.
    pub(crate) fn charge(&self, address: IpAddr, now: Instant) -> bool {
        let mut penalties = self.0.lock();
        let client = ClientKey::of(address);
        if penalties.len() >= MAX_THROTTLED_ADDRESSES && !penalties.contains_key(&client) {
            make_room(&mut penalties, now);
        }
        let end = penalties.entry(client).or_insert(now);
        let next = (*end).max(now) + GUESS_PENALTY;
        if next > now + MAX_PENALTY {
            return false;
        }
        *end = next;
        true
    }

    /// Removes the penalty of one guess, because the password of the guess was right.
    pub(crate) fn refund(&self, address: IpAddr) {
        let mut penalties = self.0.lock();
        if let Some(end) = penalties.get_mut(&ClientKey::of(address)) {
            *end = end.checked_sub(GUESS_PENALTY).unwrap_or(*end);
        }
    }

    /// Whether a penalty of this address is recorded, also one that has ended.
    #[cfg(test)]
    pub(crate) fn has_charged(&self, address: IpAddr) -> bool {
        self.0.lock().contains_key(&ClientKey::of(address))
    }
}

/// Removes the addresses whose penalty has ended. If all addresses have a penalty, removes the half
/// with the shortest penalties. Thus many addresses with one guess each cannot displace an address
/// with many guesses.
fn make_room(penalties: &mut HashMap<ClientKey, Instant>, now: Instant) {
    penalties.retain(|_, end| *end > now);
    if penalties.len() < MAX_THROTTLED_ADDRESSES {
        return;
    }
    let mut ends: Vec<_> = penalties
        .iter()
        .map(|(client, end)| (*end, *client))
        .collect();
    let (shortest, _, _) = ends.select_nth_unstable(MAX_THROTTLED_ADDRESSES / 2);
    for (_, client) in shortest {
        penalties.remove(client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_guesses_then_one_each_six_seconds() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let [one, other]: [IpAddr; 2] = ["192.0.2.1", "192.0.2.2"].map(|it| it.parse().unwrap());
        assert_eq!((0..20).filter(|_| throttle.charge(one, now)).count(), 10);
        assert!(throttle.charge(other, now));
        assert!(throttle.charge("::ffff:192.0.2.2".parse().unwrap(), now));
        assert!(!throttle.charge(one, now + GUESS_PENALTY / 2));
        assert!(throttle.charge(one, now + GUESS_PENALTY));
        assert!(!throttle.charge(one, now + GUESS_PENALTY));
        throttle.refund(one);
        assert!(throttle.charge(one, now + GUESS_PENALTY));
        assert_eq!(
            (0..20)
                .filter(|_| throttle.charge(one, now + 30 * GUESS_PENALTY))
                .count(),
            10
        );
    }

    #[test]
    fn an_ipv6_network_is_one_client_and_the_number_of_addresses_is_bounded() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let of = |text: String| text.parse::<IpAddr>().unwrap();
        let let_in = (0..20).filter(|n| throttle.charge(of(format!("2001:db8::{n:x}")), now));
        assert_eq!(let_in.count(), 10);
        for n in 0..2 * MAX_THROTTLED_ADDRESSES {
            throttle.charge(of(format!("10.0.{}.{}", n / 256, n % 256)), now);
        }
        assert!(throttle.0.lock().len() <= MAX_THROTTLED_ADDRESSES);
    }

    #[test]
    fn many_addresses_do_not_displace_an_address_with_many_guesses() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let guesser: IpAddr = "192.0.2.1".parse().unwrap();
        while throttle.charge(guesser, now) {}
        for n in 0..3 * MAX_THROTTLED_ADDRESSES {
            let one = format!("10.0.{}.{}", n / 256, n % 256);
            assert!(throttle.charge(one.parse().unwrap(), now), "a newcomer");
            assert!(!throttle.charge(guesser, now), "after {n}");
        }
    }
}
