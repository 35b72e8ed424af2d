//! Client connections: counts them per client, and closes an idle one when a new connection needs a slot.
//!
//! 1. A connection with a response in progress is never closed for another.
//! 2. The configuration bounds the connections of one client, by default to an eighth of all. For one more, the client
//!    loses its connection that has been idle longest.
//! 3. When all slots are in use, the client with most connections loses the one that has been idle longest. It loses
//!    none to a client that has as many.
//! 4. An eighth of all slots is reserved for clients that have less than an eighth of all in responses. When no other
//!    slot is left, a new request of any other client gets 503.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pierhead_host::{ClientKey, FairShare};
use tokio::sync::Notify;

use crate::limits::client_usage::ClientUsage;
use crate::limits::limit::Limit;
use crate::limits::share::leaves_no_share;

/// All open connections of all listeners.
#[derive(Default)]
pub(super) struct Connections {
    open: Mutex<OpenConnections>,
    totals: Arc<ConnectionTotals>,
}

struct OpenConnections {
    share: FairShare<ClientKey, ()>,
    by_client: HashMap<ClientKey, HashMap<u64, Arc<ConnectionActivity>>>,
    next_id: u64,
}

impl Default for OpenConnections {
    fn default() -> Self {
        Self {
            share: FairShare::new(0),
            by_client: HashMap::new(),
            next_id: 0,
        }
    }
}

#[derive(Debug, Default)]
struct ConnectionTotals {
    capacity: AtomicUsize,
    /// Connections with a response in progress.
    answered: AtomicUsize,
}

/// One open connection, counted until this is dropped.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    client: ClientKey,
    id: u64,
    pub(crate) activity: Arc<ConnectionActivity>,
    /// Whether another connection was closed for this one.
    pub(crate) has_displaced: bool,
}

/// Whether a connection waits for its client or is being answered.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    client: Arc<ClientUsage>,
    /// `None` for a refused connection.
    totals: Option<Arc<ConnectionTotals>>,
    state: Mutex<ActivityState>,
    closed: Notify,
}

#[derive(Debug)]
struct ActivityState {
    answers: usize,
    /// End of the last response.
    idle_since: Instant,
    is_closed: bool,
}

/// Marks a response in progress on the connection until dropped.
#[derive(Debug)]
pub(crate) struct ResponseInProgress(Arc<ConnectionActivity>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }

    /// Counts a connection of `client`, and closes another one for it if necessary. Fails with the limit that it exceeds.
    pub(super) fn admit(
        self: &Arc<Self>,
        client: &Arc<ClientUsage>,
        capacity: usize,
        per_client: usize,
    ) -> Result<ConnectionSlot, Limit> {
        let key = client.key;
        self.totals.capacity.store(capacity, Ordering::Relaxed);
        let mut open = self.lock();
        let mut has_displaced = false;
        while open.share.held_by(&key) >= per_client {
            if !open.close_idle(&key) {
                return Err(Limit::ConnectionsPerClient);
            }
            has_displaced = true;
        }
        open.share.set_capacity(capacity);
        while !open.share.take(&key) {
            if !open.displace(&key) {
                return Err(Limit::Connections);
            }
            has_displaced = true;
        }
        let activity = Arc::new(ConnectionActivity::new(
            client.clone(),
            Some(self.totals.clone()),
        ));
        let id = open.next_id;
        open.next_id += 1;
        let of_client = open.by_client.entry(key).or_default();
        of_client.insert(id, activity.clone());
        Ok(ConnectionSlot {
            connections: self.clone(),
            client: key,
            id,
            activity,
            has_displaced,
        })
    }
}

impl OpenConnections {
    /// Closes one connection for `newcomer`; `false` when none may be closed.
    fn displace(&mut self, newcomer: &ClientKey) -> bool {
        loop {
            let has_idle = |client: &ClientKey| self.longest_idle(client).is_some();
            let Some(client) = self.share.yields_to(newcomer, has_idle).copied() else {
                return false;
            };
            if self.close_idle(&client) {
                return true;
            }
            // Every idle connection has just received a request.
        }
    }

    /// Closes the connection of `client` that has been idle longest; `false` when there is none.
    fn close_idle(&mut self, client: &ClientKey) -> bool {
        while let Some(id) = self.longest_idle(client) {
            let of_client = self.by_client.get(client);
            if of_client
                .and_then(|it| it.get(&id))
                .is_some_and(|it| it.close())
            {
                self.remove(client, id);
                return true;
            }
            // It has just received a request.
        }
        false
    }

    fn longest_idle(&self, client: &ClientKey) -> Option<u64> {
        let of_client = self.by_client.get(client)?.iter();
        let idle = of_client.filter_map(|(id, it)| Some((it.idle_since()?, *id)));
        idle.min().map(|(_, id)| id)
    }

    fn remove(&mut self, client: &ClientKey, id: u64) -> Option<Arc<ConnectionActivity>> {
        let of_client = self.by_client.get_mut(client)?;
        let removed = of_client.remove(&id)?;
        if of_client.is_empty() {
            self.by_client.remove(client);
        }
        self.share.release(client);
        Some(removed)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.lock().remove(&self.client, self.id);
    }
}

impl ConnectionActivity {
    fn new(client: Arc<ClientUsage>, totals: Option<Arc<ConnectionTotals>>) -> Self {
        Self {
            client,
            totals,
            state: Mutex::new(ActivityState {
                answers: 0,
                idle_since: Instant::now(),
                is_closed: false,
            }),
            closed: Notify::new(),
        }
    }

    /// For a connection that only gets a refusal.
    pub(crate) fn uncounted(client: Arc<ClientUsage>) -> Self {
        Self::new(client, None)
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.state.lock()
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.answers == 0 && !state.is_closed).then_some(state.idle_since)
    }

    /// How long the connection has waited for a request since its last response; `None` during a response.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.idle_since().map(|since| since.elapsed())
    }

    /// Resolves when the connection is closed for another client. Only one task may wait.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Closes the connection unless a response is in progress.
    fn close(&self) -> bool {
        let mut state = self.lock();
        if state.answers > 0 || state.is_closed {
            return false;
        }
        state.is_closed = true;
        self.closed.notify_one();
        true
    }

    /// The head of a request arrived: restarts the idle time.
    pub(crate) fn request_began(&self) {
        self.lock().idle_since = Instant::now();
    }

    /// A whole request arrived: the response begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<ResponseInProgress, Limit> {
        let state = self.lock();
        // A connection with a response in progress already has its slot.
        if state.answers == 0 && self.leaves_no_share() {
            return Err(Limit::Connections);
        }
        self.count(state).ok_or(Limit::Connections)
    }

    /// The same for response bytes that wait for the client; `None` when the connection was closed.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<ResponseInProgress> {
        self.count(self.lock())
    }

    /// Whether the free slots are reserved for clients with fewer connections.
    fn leaves_no_share(&self) -> bool {
        let Some(totals) = &self.totals else {
            return false;
        };
        let own = self.client.answered.load(Ordering::Relaxed);
        let all = totals.answered.load(Ordering::Relaxed);
        leaves_no_share(own, all, totals.capacity.load(Ordering::Relaxed))
    }

    fn count(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ActivityState>,
    ) -> Option<ResponseInProgress> {
        if state.is_closed {
            return None;
        }
        state.answers += 1;
        if let (1, Some(totals)) = (state.answers, &self.totals) {
            totals.answered.fetch_add(1, Ordering::Relaxed);
            self.client.answered.fetch_add(1, Ordering::Relaxed);
        }
        Some(ResponseInProgress(self.clone()))
    }
}

impl Drop for ResponseInProgress {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.answers -= 1;
        if state.answers == 0 {
            state.idle_since = Instant::now();
            if let Some(totals) = &self.0.totals {
                totals.answered.fetch_sub(1, Ordering::Relaxed);
                self.0.client.answered.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Host {
        connections: Arc<Connections>,
        capacity: usize,
        per_client: usize,
    }

    impl Host {
        fn new(capacity: usize) -> Self {
            Self {
                connections: Arc::default(),
                capacity,
                per_client: capacity,
            }
        }

        fn connect(&self, client: &Arc<ClientUsage>) -> Result<ConnectionSlot, Limit> {
            self.connections
                .admit(client, self.capacity, self.per_client)
        }

        fn fill(&self, client: &Arc<ClientUsage>, count: usize) -> Vec<ConnectionSlot> {
            (0..count)
                .map(|_| self.connect(client).ok().unwrap())
                .collect()
        }
    }

    fn clients<const N: usize>() -> [Arc<ClientUsage>; N] {
        std::array::from_fn(|nth| {
            let last = u8::try_from(nth + 1).unwrap();
            Arc::new(ClientUsage::new(ClientKey::of([10, 0, 0, last].into())))
        })
    }

    fn is_closed(connected: &ConnectionSlot) -> bool {
        connected.activity.lock().is_closed
    }

    #[test]
    fn a_connection_that_is_refused_or_ended_no_longer_counts() {
        let [one] = clients();
        let mut host = Host::new(100);
        host.per_client = 2;
        let kept = host.fill(&one, 2);
        let answers: Vec<_> = kept.iter().map(|it| it.activity.begin()).collect();
        for _ in 0..3 {
            assert_eq!(host.connect(&one).err(), Some(Limit::ConnectionsPerClient));
        }
        drop(answers);
        assert!(host.connect(&one).is_ok());
        drop(kept);
        let open = host.connections.lock();
        assert_eq!((open.share.held(), open.by_client.len()), (0, 0));
    }

    #[test]
    fn a_client_at_its_cap_loses_its_own_longest_idle_connection() {
        let ([one, two], mut host) = (clients(), Host::new(100));
        host.per_client = 3;
        let other = host.fill(&two, 1);
        let held = host.fill(&one, 3);
        let _answer = held[0].activity.begin().ok().unwrap();
        let newest = host.connect(&one).ok().unwrap();
        assert!(newest.has_displaced);
        let closed: Vec<_> = held.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false]);
        assert!(!is_closed(&other[0]), "nobody else loses one");
        drop(held);
        assert_eq!(host.connections.lock().share.held(), 2);
    }

    #[test]
    fn a_connection_that_is_being_answered_takes_further_requests() {
        let ([one], host) = (clients(), Host::new(64));
        let open = host.fill(&one, 64);
        let _answers: Vec<_> = open.iter().map(|it| it.activity.begin()).collect();
        assert!(open[0].activity.begin().is_ok(), "a stream of HTTP/2");
    }

    #[test]
    fn the_client_that_holds_most_loses_its_longest_idle_connection() {
        let ([one, two, three], host) = (clients(), Host::new(16));
        let (most, some) = (host.fill(&one, 10), host.fill(&two, 6));
        // The connections that were idle longest have just received a request.
        let _answering: Vec<_> = most[..3].iter().map(|it| it.activity.begin()).collect();
        let newcomer = host.connect(&three).ok().unwrap();
        assert!(newcomer.has_displaced);
        let closed = |all: &[ConnectionSlot]| all.iter().filter(|it| is_closed(it)).count();
        assert_eq!((closed(&most), closed(&some)), (1, 0));
        assert!(is_closed(&most[3]));
        assert!(
            most[3].activity.begin().is_err(),
            "nothing is answered there"
        );
        // Its end does not release the slot a second time.
        let kept = most
            .into_iter()
            .filter(|it| !is_closed(it))
            .collect::<Vec<_>>();
        assert_eq!(host.connections.lock().share.held(), 16);
        drop((newcomer, some));
        assert_eq!(host.connections.lock().share.held(), kept.len());
    }

    #[test]
    fn nobody_loses_one_to_a_client_that_has_as_many() {
        let ([one, two, three], host) = (clients(), Host::new(4));
        let _kept = (host.fill(&one, 2), host.fill(&two, 2));
        assert_eq!(host.connect(&one).err(), Some(Limit::Connections));
        let third = host.connect(&three).ok().unwrap();
        assert!(third.has_displaced && host.connect(&three).is_err());
    }

    #[test]
    fn a_connection_that_is_being_answered_is_kept() {
        let ([one, two, three], host) = (clients(), Host::new(4));
        let (most, idle) = (host.fill(&one, 3), host.fill(&two, 1));
        let answers: Vec<_> = most.iter().map(|it| it.activity.hold()).collect();
        let newcomer = host.connect(&three).ok().unwrap();
        assert!(is_closed(&idle[0]), "the next that has an idle one yields");
        let answer = newcomer.activity.hold();
        assert_eq!(host.connect(&two).err(), Some(Limit::Connections));
        drop(answers);
        assert!(host.connect(&two).is_ok());
        assert!(is_closed(&most[0]) && !is_closed(&most[1]));
        drop(answer);
    }

    #[test]
    fn two_clients_whose_answers_take_all_leave_an_eighth_to_others() {
        let ([one, two, three], host) = (clients(), Host::new(64));
        let open = (host.fill(&one, 32), host.fill(&two, 32));
        let begin = |all: &[ConnectionSlot]| -> Vec<_> {
            all.iter()
                .filter_map(|it| it.activity.begin().ok())
                .collect()
        };
        let answers = (begin(&open.0), begin(&open.1));
        assert_eq!((answers.0.len(), answers.1.len()), (32, 24));
        let others = host.fill(&three, 8);
        assert_eq!(begin(&others).len(), 8);
        assert_eq!(host.connect(&three).err(), Some(Limit::Connections));
        drop(answers);
        let totals = &host.connections.totals;
        assert_eq!(totals.answered.load(Ordering::Relaxed), 0);
        assert_eq!(one.answered.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_time_for_a_request_begins_anew_with_its_body() {
        let ([one], host) = (clients(), Host::new(2));
        let open = host.fill(&one, 2);
        let before = open[0].activity.idle_since().unwrap();
        open[0].activity.request_began();
        assert!(open[0].activity.idle_since().unwrap() > before);
        assert!(host.connections.lock().close_idle(&one.key));
        assert!(is_closed(&open[1]), "the other has waited longer");
    }

    #[tokio::test]
    async fn whoever_serves_a_closed_connection_is_woken() {
        let ([one, two], host) = (clients(), Host::new(2));
        let most = host.fill(&one, 2);
        let newcomer = host.connect(&two);
        assert!(newcomer.is_ok());
        most[0].activity.closed().await;
    }
}
