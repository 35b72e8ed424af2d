//! How often one address may guess.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What one guess costs, and how much may be owed: ten at once, then ten a minute.
const GUESS: Duration = Duration::from_secs(6);
const CREDIT: Duration = Duration::from_secs(60);
/// Addresses remembered.
const MAX_ENTRIES: usize = 4096;

/// Each address owes [`GUESS`] for each guess; time pays the debt.
#[derive(Default)]
pub(crate) struct Throttle(Mutex<HashMap<IpAddr, Instant>>);

impl Throttle {
    /// Charges one guess before it is looked at, so that many at once are no way around it. `false`:
    /// too much is owed, and nothing was charged.
    pub(crate) fn charge(&self, address: IpAddr, now: Instant) -> bool {
        let mut paid = self.0.lock();
        let network = network(address);
        if paid.len() >= MAX_ENTRIES && !paid.contains_key(&network) {
            make_room(&mut paid, now);
        }
        let until = paid.entry(network).or_insert(now);
        let next = (*until).max(now) + GUESS;
        if next > now + CREDIT {
            return false;
        }
        *until = next;
        true
    }

    /// It was no guess: the login was right.
    pub(crate) fn refund(&self, address: IpAddr) {
        let mut paid = self.0.lock();
        if let Some(until) = paid.get_mut(&network(address)) {
            *until = until.checked_sub(GUESS).unwrap_or(*until);
        }
    }
}

/// Forgets those who owe nothing; when all owe, the half that owes least: an army of addresses that guess
/// once each is no way to be forgiven.
fn make_room(paid: &mut HashMap<IpAddr, Instant>, now: Instant) {
    paid.retain(|_, until| *until > now);
    if paid.len() < MAX_ENTRIES {
        return;
    }
    let mut debts: Vec<_> = paid.iter().map(|(who, until)| (*until, *who)).collect();
    let (least, _, _) = debts.select_nth_unstable(MAX_ENTRIES / 2);
    for (_, who) in least {
        paid.remove(who);
    }
}

/// Who has one IPv6 address has a /64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
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
        assert!(!throttle.charge(one, now + GUESS / 2));
        assert!(throttle.charge(one, now + GUESS));
        assert!(!throttle.charge(one, now + GUESS));
        throttle.refund(one);
        assert!(throttle.charge(one, now + GUESS));
        assert_eq!(
            (0..20)
                .filter(|_| throttle.charge(one, now + 30 * GUESS))
                .count(),
            10
        );
    }

    #[test]
    fn a_network_of_ipv6_is_one_client_and_all_are_bounded() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let of = |text: String| text.parse::<IpAddr>().unwrap();
        let let_in = (0..20).filter(|n| throttle.charge(of(format!("2001:db8::{n:x}")), now));
        assert_eq!(let_in.count(), 10);
        for n in 0..2 * MAX_ENTRIES {
            throttle.charge(of(format!("10.0.{}.{}", n / 256, n % 256)), now);
        }
        assert!(throttle.0.lock().len() <= MAX_ENTRIES);
    }

    #[test]
    fn a_crowd_buys_nobody_off() {
        let (throttle, now) = (Throttle::default(), Instant::now());
        let guesser: IpAddr = "192.0.2.1".parse().unwrap();
        while throttle.charge(guesser, now) {}
        for n in 0..3 * MAX_ENTRIES {
            let one = format!("10.0.{}.{}", n / 256, n % 256);
            assert!(throttle.charge(one.parse().unwrap(), now), "a newcomer");
            assert!(!throttle.charge(guesser, now), "after {n}");
        }
    }
}
