use super::*;

type Share = FairShare<char, usize>;

/// Grants slots until none is left, and says to whom.
fn grants(share: &mut Share) -> String {
    std::iter::from_fn(|| share.next(|_, _, _| true))
        .map(|(client, _)| client)
        .collect()
}

/// A share with that capacity, and waiters in that order.
fn waiting(capacity: usize, clients: &str) -> Share {
    let mut share = Share::new(capacity);
    for (at, client) in clients.chars().enumerate() {
        share.wait(&client, at);
    }
    share
}

#[test]
fn no_more_slots_are_granted_than_there_are() {
    let mut share = waiting(2, "aab");
    assert_eq!(grants(&mut share), "ab");
    assert_eq!((share.held(), share.waiting()), (2, 1));
    assert!(!share.take(&'c'));
    share.set_capacity(3);
    assert_eq!(grants(&mut share), "a");
    share.set_capacity(1);
    share.release(&'a');
    assert!(!share.take(&'c'), "two are held still");
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
fn clients_take_turns_however_many_waiters_one_has() {
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
    // Three of `a` wait still.
    share.wait(&'c', 0);
    assert_eq!(grants(&mut share), "a");
    share.release(&'a');
    assert_eq!(grants(&mut share), "c", "a newcomer waits for one turn");
}

#[test]
fn newcomers_do_not_starve_whoever_was_served_before() {
    let mut share = waiting(1, "aa");
    assert_eq!(grants(&mut share), "a");
    share.release(&'a');
    // A new client comes for each slot: the second waiter of `a` has its turn all the same.
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
    // A bound for one client.
    assert_eq!(share.next(|_, held, _| held < 1), Some(('b', 2)));
    assert_eq!(share.waiters().collect::<Vec<_>>(), [(&'a', &0)]);
}

#[test]
fn a_waiter_that_left_costs_its_client_nothing() {
    let mut share = Share::new(1);
    let left: Vec<_> = (0..5).map(|at| share.wait(&'a', at)).collect();
    for (at, id) in left.into_iter().enumerate() {
        assert_eq!(share.cancel(&'a', id), Some(at));
        assert_eq!(share.cancel(&'a', id), None);
    }
    share.wait(&'a', 0);
    share.wait(&'b', 0);
    assert_eq!(grants(&mut share), "a");
    assert_eq!((share.waiting_of(&'a'), share.waiting_of(&'b')), (0, 1));
}

#[test]
fn whoever_holds_most_yields_unless_the_newcomer_would_have_more() {
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
fn clients_that_neither_hold_nor_wait_are_forgotten() {
    let mut share: FairShare<usize, ()> = FairShare::new(1);
    for client in 0..10_000 {
        share.wait(&client, ());
        assert!(share.next(|_, _, ()| true).is_some());
        share.release(&client);
        assert!(share.clients.len() <= 2 * SLACK, "{}", share.clients.len());
    }
    assert_eq!(share.held(), 0);
    share.release(&7);
    assert_eq!(share.held(), 0, "nothing is given back twice");
}

#[test]
fn addresses_of_one_client_are_one() {
    let of = |text: &str| ClientKey::of(text.parse().unwrap());
    assert_eq!(of("2001:db8:1:2::3"), of("2001:db8:1:2:ffff::9"));
    assert_ne!(of("2001:db8:1:2::3"), of("2001:db8:1:3::3"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    assert_ne!(of("10.0.0.1"), ClientKey::OPERATOR);
}
