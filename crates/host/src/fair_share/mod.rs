//! Divides equal slots (connections, downloads, bundle plans) fairly between clients.
//!
//! 1. The number of held slots never exceeds the capacity.
//! 2. A free slot goes to a waiter of the client that holds the fewest slots. Clients with the same
//!    number of slots get free slots in turn, whatever the number of their waiters is. The
//!    algorithm is start-time fair queueing (Goyal, Vin, Cheng 1996) with a cost of 1 for each
//!    grant.
//! 3. When a slot must become free, the client that holds the most slots (the holder) yields one
//!    slot. The holder yields only to a client without slots, or to a client that afterwards has no
//!    more slots than the holder. Thus two clients never take the same slot from each other
//!    repeatedly.
//!
//! The type [`FairShare`] is a pure value without clock, lock or task. The caller decides which
//! waiters are eligible and which holders can yield.

use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// The key of a client, which is made from the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientKey(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Operator,
    Address(IpAddr),
}

impl ClientKey {
    /// The key of the operator of this host, who acts for no client.
    pub const OPERATOR: Self = Self(Kind::Operator);

    /// Returns the key of an IPv4 address, or of the /64 network of an IPv6 address, because one
    /// host controls its whole /64.
    pub fn of(address: IpAddr) -> Self {
        Self(Kind::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) & (u128::MAX << 64);
                IpAddr::V6(Ipv6Addr::from(network))
            }
            v4 => v4,
        }))
    }
}

/// Identifies one waiter of a [`FairShare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterId(u64);

/// The slots that each client `K` holds, and the waiters `W` for slots. The documentation of this
/// module has the rules.
#[derive(Debug)]
pub struct FairShare<K, W> {
    capacity: usize,
    held: usize,
    waiting: usize,
    /// The accounts of clients that hold slots or wait, and of clients whose next virtual start
    /// is later than `virtual_time`.
    clients: HashMap<K, Account<W>>,
    /// The virtual start of a new client. This virtual start is one more than the highest virtual
    /// start of any waiter that was granted a slot.
    virtual_time: u64,
    next_id: u64,
    /// Number of accounts above which expired accounts are removed.
    sweep_at: usize,
}

#[derive(Debug)]
struct Account<W> {
    held: usize,
    waiters: VecDeque<Waiter<W>>,
    /// The earliest virtual start that the client's next waiter can get.
    next_start: u64,
}

#[derive(Debug)]
struct Waiter<W> {
    id: u64,
    start: u64,
    value: W,
}

/// Maximum number of expired accounts of clients that may stay in memory.
const MAX_EXPIRED: usize = 64;

impl<K: Eq + Hash + Clone, W> FairShare<K, W> {
    /// Creates a share of `capacity` slots. With a capacity of 0, no slot is granted.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            held: 0,
            waiting: 0,
            clients: HashMap::new(),
            virtual_time: 0,
            next_id: 0,
            sweep_at: MAX_EXPIRED,
        }
    }

    /// Changes the capacity. Clients keep the slots that they hold.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Returns the maximum number of held slots.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of slots that all clients hold.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of slots that `client` holds.
    pub fn held_by(&self, client: &K) -> usize {
        self.clients.get(client).map_or(0, |it| it.held)
    }

    /// Returns the number of waiters of all clients.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the number of waiters of `client`.
    pub fn waiting_of(&self, client: &K) -> usize {
        self.clients.get(client).map_or(0, |it| it.waiters.len())
    }

    /// Returns all waiters, in arbitrary order.
    pub fn waiters(&self) -> impl Iterator<Item = (&K, &W)> {
        self.clients.iter().flat_map(|(client, account)| {
            let waiters = account.waiters.iter();
            waiters.map(move |waiter| (client, &waiter.value))
        })
    }

    /// Takes a free slot for `client` without waiting, before all waiters. Returns `false` if no
    /// slot is free.
    pub fn take(&mut self, client: &K) -> bool {
        if self.held >= self.capacity {
            return false;
        }
        self.held += 1;
        self.account(client).held += 1;
        true
    }

    /// Releases one slot of `client`. The caller must then grant this slot through [`Self::next`].
    pub fn release(&mut self, client: &K) {
        let Some(account) = self.clients.get_mut(client) else {
            return;
        };
        if account.held > 0 {
            account.held -= 1;
            self.held -= 1;
        }
        self.forget(client);
    }

    /// Adds a waiter at the end of the queue of `client`.
    pub fn wait(&mut self, client: &K, value: W) -> WaiterId {
        let (id, now) = (self.next_id, self.virtual_time);
        self.next_id += 1;
        self.waiting += 1;
        let account = self.account(client);
        let start = account.next_start.max(now);
        account.next_start = start + 1;
        account.waiters.push_back(Waiter { id, start, value });
        WaiterId(id)
    }

    /// Removes a waiter. `None` if the waiter was already granted a slot.
    pub fn cancel(&mut self, client: &K, waiter: WaiterId) -> Option<W> {
        let account = self.clients.get_mut(client)?;
        let at = account.waiters.iter().position(|it| it.id == waiter.0)?;
        let removed = account.waiters.remove(at)?;
        // The later waiters of the client get earlier starts, because a waiter that left does not
        // count as a grant.
        for later in account.waiters.range_mut(at..) {
            later.start -= 1;
        }
        account.next_start -= 1;
        self.waiting -= 1;
        self.forget(client);
        Some(removed.value)
    }

    /// Grants a free slot to the next eligible waiter. `is_eligible` gets the client, the number of
    /// its slots, and the waiter. `None` if no slot is free or no waiter is eligible.
    pub fn next(&mut self, mut is_eligible: impl FnMut(&K, usize, &W) -> bool) -> Option<(K, W)> {
        if self.held >= self.capacity {
            return None;
        }
        let mut best: Option<((usize, u64, u64), &K, usize)> = None;
        for (client, account) in &self.clients {
            let mut waiters = account.waiters.iter();
            let at = waiters.position(|it| is_eligible(client, account.held, &it.value));
            let Some((at, waiter)) = at.and_then(|at| Some((at, account.waiters.get(at)?))) else {
                continue;
            };
            let rank = (account.held, waiter.start, waiter.id);
            if best.is_none_or(|(best, ..)| rank < best) {
                best = Some((rank, client, at));
            }
        }
        let (_, client, at) = best?;
        let client = client.clone();
        let account = self.clients.get_mut(&client)?;
        let waiter = account.waiters.remove(at)?;
        account.held += 1;
        self.held += 1;
        self.waiting -= 1;
        // The added 1 prevents starvation: without it, an endless sequence of new clients would
        // always come before each client that was granted a slot earlier.
        self.virtual_time = self.virtual_time.max(waiter.start + 1);
        Some((client, waiter.value))
    }

    /// Returns the client that must yield a slot to `newcomer`: the client with the most slots for
    /// which `can_yield` returns `true`. `None` if `newcomer` would have more slots than that
    /// client afterwards.
    pub fn yields_to(&self, newcomer: &K, mut can_yield: impl FnMut(&K) -> bool) -> Option<&K> {
        let own = self.held_by(newcomer);
        let holders: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, account)| account.held > own + usize::from(own > 0))
            .collect();
        // A heap is cheaper than a sort here, because usually the first client in the order can
        // yield.
        let by_held = holders.iter().enumerate();
        let mut by_most: BinaryHeap<_> = by_held.map(|(at, (_, it))| (it.held, at)).collect();
        while let Some((_, at)) = by_most.pop() {
            let (client, _) = *holders.get(at)?;
            if can_yield(client) {
                return Some(client);
            }
        }
        None
    }

    fn account(&mut self, client: &K) -> &mut Account<W> {
        if self.clients.len() >= self.sweep_at && !self.clients.contains_key(client) {
            let now = self.virtual_time;
            self.clients.retain(|_, account| account.is_needed(now));
            self.sweep_at = 2 * self.clients.len() + MAX_EXPIRED;
        }
        self.clients
            .entry(client.clone())
            .or_insert_with(|| Account {
                held: 0,
                waiters: VecDeque::new(),
                next_start: 0,
            })
    }

    /// Removes the account of `client` if it has expired.
    fn forget(&mut self, client: &K) {
        let now = self.virtual_time;
        if self
            .clients
            .get(client)
            .is_some_and(|it| !it.is_needed(now))
        {
            self.clients.remove(client);
        }
    }
}

impl<W> Account<W> {
    fn is_needed(&self, now: u64) -> bool {
        self.held > 0 || !self.waiters.is_empty() || self.next_start > now
    }
}

#[cfg(test)]
mod tests;
