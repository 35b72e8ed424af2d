//! Tests of the fair division of slots between clients. In these tests, a client is a letter, and a
//! text such as `"aab"` is a list of waiters or of grants.

use super::*;

type Share = FairShare<char, usize>;

/// Grants slots until none is free. Returns the clients in the order of the grants.
fn grants(share: &mut Share) -> String {
    std::iter::from_fn(|| share.next(|_, _, _| true))
        .map(|(client, _)| client)
        .collect()
}

/// Creates a share with this capacity, and one waiter for each letter of `clients`, in order.
fn waiting(capacity: usize, clients: &str) -> Share {
    let mut share = Share::new(capacity);
    for (at, client) in clients.chars().enumerate() {
        share.wait(&client, at);
    }
    share
}

#[test]
fn at_most_as_many_slots_are_held_as_the_capacity() {
    let mut share = waiting(2, "aab");
    assert_eq!(grants(&mut share), "ab");
    assert_eq!((share.held(), share.waiting()), (2, 1));
    assert!(!share.take(&'c'));
    share.set_capacity(3);
    assert_eq!(grants(&mut share), "a");
    share.set_capacity(1);
    share.release(&'a');
    assert!(!share.take(&'c'), "two slots are still held");
    share.release(&'a');
    share.release(&'b');
    assert!(share.take(&'c'));
}

#[test]
fn a_free_slot_goes_to_the_client_that_holds_fewest() {
    let mut share = waiting(4, "aaaaaaaa");
    assert_eq!(grants(&mut share), "aaaa");
    for _ in 0..2 {
        share.wait(&'b', 0);
    }
    share.wait(&'c', 0);
    for _ in 0..3 {
        share.release(&'a');
    }
    assert_eq!(grants(&mut share), "bca", "then a and b hold one each");
}

#[test]
fn clients_alternate_whatever_the_number_of_their_waiters() {
    let mut share = waiting(1, "aaaaabb");
    let mut order = String::new();
    for _ in 0..4 {
        let granted = grants(&mut share);
        for client in granted.chars() {
            share.release(&client);
        }
        order += &granted;
    }
    assert_eq!(order, "abab");
    // Three waiters of the client `a` remain.
    share.wait(&'c', 0);
    assert_eq!(grants(&mut share), "a");
    share.release(&'a');
    assert_eq!(grants(&mut share), "c", "a new client waits for one grant");
}

#[test]
fn new_clients_do_not_starve_a_client_that_had_a_slot() {
    let mut share = waiting(1, "aa");
    assert_eq!(grants(&mut share), "a");
    share.release(&'a');
    // A new client arrives for each slot. The second waiter of `a` must get one of the first slots.
    let mut order = String::new();
    for client in "bcdefg".chars() {
        share.wait(&client, 0);
        let granted = grants(&mut share);
        for client in granted.chars() {
            share.release(&client);
        }
        order += &granted;
    }
    assert!(order[..3].contains('a'), "{order}");
}

#[test]
fn waiters_that_are_not_eligible_keep_their_place() {
    let mut share = waiting(2, "aab");
    let odd = share.next(|_, _, value| value % 2 == 1);
    assert_eq!(odd, Some(('a', 1)));
    assert_eq!(share.next(|_, _, value| *value > 7), None);
    // In this call, the caller allows at most one slot for each client.
    assert_eq!(share.next(|_, held, _| held < 1), Some(('b', 2)));
    assert_eq!(share.waiters().collect::<Vec<_>>(), [(&'a', &0)]);
}

#[test]
fn a_cancelled_waiter_costs_its_client_nothing() {
    let mut share = Share::new(1);
    let cancelled: Vec<_> = (0..5).map(|at| share.wait(&'a', at)).collect();
    for (at, id) in cancelled.into_iter().enumerate() {
        assert_eq!(share.cancel(&'a', id), Some(at));
        assert_eq!(share.cancel(&'a', id), None);
    }
    share.wait(&'a', 0);
    share.wait(&'b', 0);
    assert_eq!(grants(&mut share), "a");
    assert_eq!((share.waiting_of(&'a'), share.waiting_of(&'b')), (0, 1));
}

#[test]
fn the_client_with_most_slots_yields_unless_the_new_one_would_have_more() {
    let mut share = Share::new(6);
    for client in "aaabbc".chars() {
        assert!(share.take(&client));
    }
    assert_eq!(share.yields_to(&'d', |_| true), Some(&'a'));
    assert_eq!(share.yields_to(&'d', |it| *it != 'a'), Some(&'b'));
    assert_eq!(share.yields_to(&'d', |it| *it == 'c'), Some(&'c'));
    assert_eq!(share.yields_to(&'c', |_| true), Some(&'a'));
    assert_eq!(share.yields_to(&'c', |it| *it != 'a'), None);
    assert_eq!(share.yields_to(&'b', |_| true), None);
    assert_eq!(share.yields_to(&'a', |_| true), None);
    assert_eq!(share.yields_to(&'d', |_| false), None);
}

#[test]
fn accounts_without_slots_and_waiters_are_removed() {
    let mut share: FairShare<usize, ()> = FairShare::new(1);
    for client in 0..10_000 {
        share.wait(&client, ());
        assert!(share.next(|_, _, ()| true).is_some());
        share.release(&client);
        assert!(
            share.clients.len() <= 2 * MAX_EXPIRED,
            "{}",
            share.clients.len()
        );
    }
    assert_eq!(share.held(), 0);
    share.release(&7);
    assert_eq!(share.held(), 0, "a second release changes nothing");
}

#[test]
fn all_addresses_of_one_ipv6_network_are_one_client() {
    let of = |text: &str| ClientKey::of(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::3"), of("2001:db8:1:3::3"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    assert_ne!(of("10.0.0.1"), ClientKey::OPERATOR);
}

proptest::proptest! {
    /// Any sequence of waits, cancellations, takes, grants and releases keeps the counts right.
    #[test]
    fn the_counts_match_the_clients_after_any_operations(
        capacity in 0..5_usize,
        operations in proptest::collection::vec((0..5_u8, 0..4_usize), 0..200),
    ) {
        let mut share: FairShare<usize, u32> = FairShare::new(capacity);
        let (mut held, mut waiters) = ([0; 4], [const { Vec::new() }; 4]);
        for (operation, client) in operations {
            match operation {
                0 => waiters[client].push(share.wait(&client, 0)),
                1 => {
                    if let Some(waiter) = waiters[client].pop() {
                        proptest::prop_assert!(share.cancel(&client, waiter).is_some());
                    }
                }
                2 => held[client] += usize::from(share.take(&client)),
                3 => {
                    if let Some((granted, _)) = share.next(|_, _, _| true) {
                        let fewest = (0..4).filter(|it| !waiters[*it].is_empty());
                        let fewest = fewest.map(|it| held[it]).min();
                        proptest::prop_assert_eq!(fewest, Some(held[granted]));
                        waiters[granted].remove(0);
                        held[granted] += 1;
                    }
                }
                _ => {
                    share.release(&client);
                    held[client] = held[client].saturating_sub(1);
                }
            }
            proptest::prop_assert!(share.held() <= capacity);
            proptest::prop_assert_eq!(share.held(), held.iter().sum::<usize>());
            for client in 0..4 {
                proptest::prop_assert_eq!(share.held_by(&client), held[client]);
                proptest::prop_assert_eq!(share.waiting_of(&client), waiters[client].len());
            }
        }
    }
}
