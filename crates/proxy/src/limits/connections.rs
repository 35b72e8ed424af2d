//! Counts the connections of each client, and closes an idle connection when a new connection needs
//! a slot.
//!
//! 1. A connection with a response in progress is never closed to make room for another connection.
//! 2. The configuration limits the connections of one client, by default to an eighth of all
//!    connections. For a connection above this limit, pierhead closes the connection of the same
//!    client that has been idle longest.
//! 3. When all slots are in use, pierhead takes the client with the most connections, and closes
//!    the connection of this client that has been idle longest. A client with as many connections
//!    as the client of the new connection loses none.
//! 4. An eighth of all slots is reserved for clients that use less than an eighth of all slots for
//!    responses. When no other slot is left, a new request of any other client gets 503.

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
    /// Number of connections with a response in progress.
    responding: AtomicUsize,
}

/// One open connection, which counts as open until this value is dropped.
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    client: ClientKey,
    id: u64,
    pub(crate) activity: Arc<ConnectionActivity>,
    /// Whether pierhead closed another connection to make room for this connection.
    pub(crate) has_displaced: bool,
}

/// Whether a connection is idle or has a response in progress.
#[derive(Debug)]
pub(crate) struct ConnectionActivity {
    client: Arc<ClientUsage>,
    /// The totals that this connection changes. `None` for a refused connection.
    totals: Option<Arc<ConnectionTotals>>,
    state: Mutex<ActivityState>,
    closed: Notify,
}

#[derive(Debug)]
struct ActivityState {
    responses_in_progress: usize,
    /// The time of the end of the last response.
    idle_since: Instant,
    is_closed: bool,
}

/// While this value exists, the connection has a response in progress.
#[derive(Debug)]
pub(crate) struct ResponseInProgress(Arc<ConnectionActivity>);

impl Connections {
    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }

    /// Counts a new connection of `client`. If necessary, closes another connection to make room.
    /// If there is no room, returns the limit that the connection exceeds.
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
    /// Closes one connection to make room for `newcomer`. `false` if no connection may be closed.
    fn displace(&mut self, newcomer: &ClientKey) -> bool {
        loop {
            let has_idle = |client: &ClientKey| self.longest_idle(client).is_some();
            let Some(client) = self.share.yields_to(newcomer, has_idle).copied() else {
                return false;
            };
            if self.close_idle(&client) {
                return true;
            }
            // `close` failed for every idle connection, because each has just received a request.
        }
    }

    /// Closes the connection of `client` that has been idle longest. `false` if no connection is
    /// idle.
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
            // `close` failed, because the connection has just received a request. So the connection
            // stays open.
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
                responses_in_progress: 0,
                idle_since: Instant::now(),
                is_closed: false,
            }),
            closed: Notify::new(),
        }
    }

    /// Creates the activity of a connection that pierhead refuses, which changes no totals.
    pub(crate) fn uncounted(client: Arc<ClientUsage>) -> Self {
        Self::new(client, None)
    }

    fn lock(&self) -> MutexGuard<'_, ActivityState> {
        self.state.lock()
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.responses_in_progress == 0 && !state.is_closed).then_some(state.idle_since)
    }

    /// Returns how long the connection has waited for a request since its last response. `None`
    /// during a response.
    pub(crate) fn idle(&self) -> Option<Duration> {
        self.idle_since().map(|since| since.elapsed())
    }

    /// Resolves when pierhead closes the connection to make room for another client. Only one task
    /// may wait for the result.
    pub(crate) async fn closed(&self) {
        self.closed.notified().await;
    }

    /// Closes the connection, unless the connection has a response in progress.
    fn close(&self) -> bool {
        let mut state = self.lock();
        if state.responses_in_progress > 0 || state.is_closed {
            return false;
        }
        state.is_closed = true;
        self.closed.notify_one();
        true
    }

    /// Records that the head of a request arrived. The idle time starts anew.
    pub(crate) fn request_began(&self) {
        self.lock().idle_since = Instant::now();
    }

    /// Records that a complete request arrived, so that the connection now has a response in
    /// progress.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<ResponseInProgress, Limit> {
        let state = self.lock();
        // A connection with a response in progress already has its slot.
        if state.responses_in_progress == 0 && self.leaves_no_share() {
            return Err(Limit::Connections);
        }
        self.count(state).ok_or(Limit::Connections)
    }

    /// Marks a response in progress while bytes of the response wait for the client. `None`: the
    /// connection was closed.
    pub(crate) fn mark_unread_response(self: &Arc<Self>) -> Option<ResponseInProgress> {
        self.count(self.lock())
    }

    /// Whether all free slots are reserved for clients with fewer connections.
    fn leaves_no_share(&self) -> bool {
        let Some(totals) = &self.totals else {
            return false;
        };
        let own = self.client.responding.load(Ordering::Relaxed);
        let all = totals.responding.load(Ordering::Relaxed);
        leaves_no_share(own, all, totals.capacity.load(Ordering::Relaxed))
    }

    fn count(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ActivityState>,
    ) -> Option<ResponseInProgress> {
        if state.is_closed {
            return None;
        }
        state.responses_in_progress += 1;
        if let (1, Some(totals)) = (state.responses_in_progress, &self.totals) {
            totals.responding.fetch_add(1, Ordering::Relaxed);
            self.client.responding.fetch_add(1, Ordering::Relaxed);
        }
        Some(ResponseInProgress(self.clone()))
    }
}

impl Drop for ResponseInProgress {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.responses_in_progress -= 1;
        if state.responses_in_progress == 0 {
            state.idle_since = Instant::now();
            if let Some(totals) = &self.0.totals {
                totals.responding.fetch_sub(1, Ordering::Relaxed);
                self.0.client.responding.fetch_sub(1, Ordering::Relaxed);
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
        let open = host.fill(&one, 2);
        let responses: Vec<_> = open.iter().map(|it| it.activity.begin()).collect();
        for _ in 0..3 {
            assert_eq!(host.connect(&one).err(), Some(Limit::ConnectionsPerClient));
        }
        drop(responses);
        assert!(host.connect(&one).is_ok());
        drop(open);
        let counted = host.connections.lock();
        assert_eq!((counted.share.held(), counted.by_client.len()), (0, 0));
    }

    #[test]
    fn a_client_at_its_limit_loses_its_own_longest_idle_connection() {
        let ([one, two], mut host) = (clients(), Host::new(100));
        host.per_client = 3;
        let other = host.fill(&two, 1);
        let held = host.fill(&one, 3);
        let _response = held[0].activity.begin().ok().unwrap();
        let newest = host.connect(&one).ok().unwrap();
        assert!(newest.has_displaced);
        let closed: Vec<_> = held.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false]);
        assert!(!is_closed(&other[0]), "other clients lose none");
        drop(held);
        assert_eq!(host.connections.lock().share.held(), 2);
    }

    #[test]
    fn a_connection_with_a_response_in_progress_takes_further_requests() {
        let ([one], host) = (clients(), Host::new(64));
        let open = host.fill(&one, 64);
        let _responses: Vec<_> = open.iter().map(|it| it.activity.begin()).collect();
        assert!(open[0].activity.begin().is_ok(), "a second HTTP/2 stream");
    }

    #[test]
    fn the_client_that_holds_most_loses_its_longest_idle_connection() {
        let ([one, two, three], host) = (clients(), Host::new(16));
        let (most, some) = (host.fill(&one, 10), host.fill(&two, 6));
        // The connections that were idle longest have just received a request, so pierhead may not
        // close them.
        let _responses: Vec<_> = most[..3].iter().map(|it| it.activity.begin()).collect();
        let newcomer = host.connect(&three).ok().unwrap();
        assert!(newcomer.has_displaced);
        let closed = |all: &[ConnectionSlot]| all.iter().filter(|it| is_closed(it)).count();
        assert_eq!((closed(&most), closed(&some)), (1, 0));
        assert!(is_closed(&most[3]));
        assert!(
            most[3].activity.begin().is_err(),
            "a closed connection takes no request"
        );
        // The slot of the closed connection is already free. When that connection ends, the slot
        // must not be released a second time.
        let open = most
            .into_iter()
            .filter(|it| !is_closed(it))
            .collect::<Vec<_>>();
        assert_eq!(host.connections.lock().share.held(), 16);
        drop((newcomer, some));
        assert_eq!(host.connections.lock().share.held(), open.len());
    }

    #[test]
    fn a_client_with_as_many_connections_displaces_none() {
        let ([one, two, three], host) = (clients(), Host::new(4));
        let _open = (host.fill(&one, 2), host.fill(&two, 2));
        assert_eq!(host.connect(&one).err(), Some(Limit::Connections));
        let third = host.connect(&three).ok().unwrap();
        assert!(third.has_displaced && host.connect(&three).is_err());
    }

    #[test]
    fn a_connection_with_a_response_in_progress_is_not_closed() {
        let ([one, two, three], host) = (clients(), Host::new(4));
        let (most, idle) = (host.fill(&one, 3), host.fill(&two, 1));
        let responses: Vec<_> = most
            .iter()
            .map(|it| it.activity.mark_unread_response())
            .collect();
        let newcomer = host.connect(&three).ok().unwrap();
        assert!(
            is_closed(&idle[0]),
            "the next client with an idle one loses it"
        );
        let response = newcomer.activity.mark_unread_response();
        assert_eq!(host.connect(&two).err(), Some(Limit::Connections));
        drop(responses);
        assert!(host.connect(&two).is_ok());
        assert!(is_closed(&most[0]) && !is_closed(&most[1]));
        drop(response);
    }

    #[test]
    fn two_clients_with_all_responses_leave_an_eighth_to_others() {
        let ([one, two, three], host) = (clients(), Host::new(64));
        let open = (host.fill(&one, 32), host.fill(&two, 32));
        let begin = |all: &[ConnectionSlot]| -> Vec<_> {
            all.iter()
                .filter_map(|it| it.activity.begin().ok())
                .collect()
        };
        let responses = (begin(&open.0), begin(&open.1));
        assert_eq!((responses.0.len(), responses.1.len()), (32, 24));
        let others = host.fill(&three, 8);
        assert_eq!(begin(&others).len(), 8);
        assert_eq!(host.connect(&three).err(), Some(Limit::Connections));
        drop(responses);
        let totals = &host.connections.totals;
        assert_eq!(totals.responding.load(Ordering::Relaxed), 0);
        assert_eq!(one.responding.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_idle_time_restarts_with_the_body_of_a_request() {
        let ([one], host) = (clients(), Host::new(2));
        let open = host.fill(&one, 2);
        let before = open[0].activity.idle_since().unwrap();
        open[0].activity.request_began();
        assert!(open[0].activity.idle_since().unwrap() > before);
        assert!(host.connections.lock().close_idle(&one.key));
        assert!(is_closed(&open[1]), "the other has been idle longer");
    }

    #[tokio::test]
    async fn the_task_that_serves_a_closed_connection_wakes_up() {
        let ([one, two], host) = (clients(), Host::new(2));
        let most = host.fill(&one, 2);
        let newcomer = host.connect(&two);
        assert!(newcomer.is_ok());
        most[0].activity.closed().await;
    }
}
