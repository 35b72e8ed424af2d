//! Background pulls of images that bundle requests need.
//!
//! 1. At most [`AT_ONCE`] pulls have a place, and [`PER_CLIENT`] of one client.
//! 2. A quarter of the places is reserved for configured registries.
//! 3. One place is reserved for clients without a pull. The same holds for the places that unconfigured registries may
//!    use.
//! 4. A pull goes on when its client leaves. A request asks for it again every second. When no request did so within
//!    [`AWAITED`], the pull yields its place to another pull. The client with most pulls yields first.
//! 5. A pull that no request asked for within [`MAX_UNASKED`] loses its place, too.
//! 6. A pull without a place begins no download. Its running downloads end as those of a client that left: they yield to
//!    other downloads, and their bytes stay staged.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::Reference;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::Error;
use crate::limits::client::Client;
use crate::limits::limit::Limit;
use crate::limits::share::{configured_reserve, leaves_no_room};

/// Images at once: each has three downloads.
const AT_ONCE: usize = 8;
/// Of them for one client: its downloads are counted as those that it asks for itself.
const PER_CLIENT: usize = 3;
/// Places that are reserved for clients without a pull.
const RESERVED: usize = 1;
/// A client waits for a pull that it asked for within this time. Clients ask again every second.
const AWAITED: Duration = Duration::from_secs(30);
/// A pull ends when no request asked for it within this time.
const MAX_UNASKED: Duration = Duration::from_secs(600);
/// For how long a failure is told to those who ask, before another pull is begun.
const FAILED: Duration = Duration::from_secs(10);
/// Failures that are remembered.
const MAX_FAILED: usize = 256;

/// By where they are pulled from: what one registry sends slowly, or not at all, is not told of another.
#[derive(Clone, Default)]
pub(crate) struct Pulls(Arc<Mutex<States>>);

#[derive(Default)]
struct States {
    by_image: HashMap<Reference, State>,
    next_id: u64,
}

enum State {
    Running(Running),
    Failed(String, Instant),
}

/// A pull with a place. Dropping this tells its task that it lost the place.
struct Running {
    id: u64,
    client: Arc<Client>,
    is_configured: bool,
    progress: Progress,
    /// When a request asked for it last.
    asked: Instant,
    _place: oneshot::Sender<()>,
}

impl States {
    fn running(&self) -> impl Iterator<Item = (&Reference, &Running)> {
        self.by_image
            .iter()
            .filter_map(|(image, state)| match state {
                State::Running(running) => Some((image, running)),
                State::Failed(..) => None,
            })
    }

    /// The pull `id`, while it has its place.
    fn get_mut(&mut self, image: &Reference, id: u64) -> Option<&mut Running> {
        match self.by_image.get_mut(image) {
            Some(State::Running(running)) if running.id == id => Some(running),
            _ => None,
        }
    }

    /// The limit that stops `client` from pulling another image; `None` when it may. Computed as if the pull `without` had
    /// ended.
    fn obstacle(
        &self,
        client: &Arc<Client>,
        is_configured: bool,
        without: Option<u64>,
    ) -> Option<Limit> {
        let is_own = |it: &&Running| Arc::ptr_eq(&it.client, client);
        let running = || {
            let running = self.running().map(|(_, it)| it);
            running.filter(|it| Some(it.id) != without)
        };
        let own = running().filter(is_own).count();
        if own >= PER_CLIENT {
            return Some(Limit::FetchesPerClient);
        }
        let unconfigured = || running().filter(|it| !it.is_configured);
        let of_unconfigured = (
            unconfigured().filter(is_own).count(),
            unconfigured().count(),
        );
        let for_unconfigured = AT_ONCE - configured_reserve(AT_ONCE);
        let is_full = leaves_no_room((own, running().count()), 1, AT_ONCE, RESERVED)
            || (!is_configured && leaves_no_room(of_unconfigured, 1, for_unconfigured, RESERVED));
        is_full.then_some(Limit::Fetches)
    }

    /// The pull that yields its place to one of `client`.
    fn yielding(&self, client: &Arc<Client>, is_configured: bool) -> Option<Reference> {
        let held_by = |of: &Arc<Client>| {
            let running = self.running();
            running
                .filter(|(_, it)| Arc::ptr_eq(&it.client, of))
                .count()
        };
        let idle = self.running().filter(|(_, it)| {
            it.asked.elapsed() >= AWAITED
                && self.obstacle(client, is_configured, Some(it.id)).is_none()
        });
        let most = idle.max_by_key(|(_, it)| (held_by(&it.client), Reverse(it.id)));
        most.map(|(image, _)| image.clone())
    }
}

impl Pulls {
    fn states(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a pull for `client`, unless it is under way, whoever asked first.
    pub(crate) fn begin(
        &self,
        client: &Arc<Client>,
        reference: &Reference,
        is_configured: bool,
    ) -> Result<Begun, Error> {
        let mut states = self.states();
        match states.by_image.get_mut(reference) {
            Some(State::Running(running)) => {
                running.asked = Instant::now();
                return Ok(Begun::Before(running.progress));
            }
            Some(State::Failed(why, at)) if at.elapsed() < FAILED => {
                return Err(Error::Pull(why.clone()));
            }
            _ => {}
        }
        if let Some(limit) = states.obstacle(client, is_configured, None) {
            let yielding = states.yielding(client, is_configured).ok_or(limit)?;
            states.by_image.remove(&yielding);
        }
        if states.by_image.len() >= MAX_FAILED {
            let is_running = |state: &State| matches!(state, State::Running(_));
            states.by_image.retain(|_, state| is_running(state));
        }
        let (held, lost) = oneshot::channel();
        let id = states.next_id;
        states.next_id += 1;
        let running = Running {
            id,
            client: client.clone(),
            is_configured,
            progress: BEGUN,
            asked: Instant::now(),
            _place: held,
        };
        let state = State::Running(running);
        states.by_image.insert(reference.clone(), state);
        let place = Place {
            pulls: self.clone(),
            image: reference.clone(),
            id,
        };
        Ok(Begun::Now(place, lost))
    }
}

/// Nothing is known of it yet.
pub(crate) const BEGUN: Progress = Progress {
    stage: Stage::Pull,
    done: 0,
    total: 0,
};

pub(crate) enum Begun {
    Before(Progress),
    /// The receiver resolves when the pull has lost its place.
    Now(Place, oneshot::Receiver<()>),
}

/// The place of one pull, which ends when this is dropped. Does nothing once the pull has lost its place.
pub(crate) struct Place {
    pulls: Pulls,
    pub(crate) image: Reference,
    id: u64,
}

impl Place {
    pub(crate) fn report(&self, progress: Progress) {
        if let Some(running) = self.pulls.states().get_mut(&self.image, self.id) {
            running.progress = progress;
        }
    }

    /// Resolves when no request asked for this pull within [`MAX_UNASKED`].
    pub(crate) async fn unasked(&self) {
        loop {
            let asked = self
                .pulls
                .states()
                .get_mut(&self.image, self.id)
                .map(|it| it.asked);
            let Some(asked) = asked else {
                return std::future::pending().await;
            };
            if asked.elapsed() >= MAX_UNASKED {
                return;
            }
            tokio::time::sleep_until(asked + MAX_UNASKED).await;
        }
    }

    pub(crate) fn leave(&self) {
        let mut states = self.pulls.states();
        if states.get_mut(&self.image, self.id).is_some() {
            states.by_image.remove(&self.image);
        }
    }

    pub(crate) fn failed(&self, why: String) {
        let mut states = self.pulls.states();
        if states.get_mut(&self.image, self.id).is_some() {
            let failed = State::Failed(why, Instant::now());
            states.by_image.insert(self.image.clone(), failed);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(nth: usize) -> Reference {
        format!("registry.example/app-{nth}:1").parse().unwrap()
    }

    fn clients<const N: usize>() -> [Arc<Client>; N] {
        std::array::from_fn(|_| Arc::new(Client::operator()))
    }

    /// The places that the client gets, of images from `first` on.
    fn greedy(
        pulls: &Pulls,
        client: &Arc<Client>,
        first: usize,
        is_configured: bool,
    ) -> Vec<(Place, oneshot::Receiver<()>)> {
        let begin = |nth| match pulls.begin(client, &image(nth), is_configured) {
            Ok(Begun::Now(place, lost)) => Some((place, lost)),
            _ => None,
        };
        (first..first + AT_ONCE).map_while(begin).collect()
    }

    fn refused(
        pulls: &Pulls,
        client: &Arc<Client>,
        nth: usize,
        is_configured: bool,
    ) -> Option<Limit> {
        match pulls.begin(client, &image(nth), is_configured) {
            Err(Error::Limited(limit)) => Some(limit),
            _ => None,
        }
    }

    #[tokio::test]
    async fn clients_share_the_places_of_pulls() {
        let (pulls, [one, two, three, four, five]) = (Pulls::default(), clients());
        let unconfigured = (
            greedy(&pulls, &one, 0, false),
            greedy(&pulls, &two, 10, false),
            greedy(&pulls, &three, 20, false),
        );
        let counts = (
            unconfigured.0.len(),
            unconfigured.1.len(),
            unconfigured.2.len(),
        );
        assert_eq!(counts, (3, 2, 1), "a quarter is kept, and one of the rest");
        assert_eq!(
            refused(&pulls, &one, 40, false),
            Some(Limit::FetchesPerClient)
        );
        // Requests for a pull under way need no place.
        let again = pulls.begin(&four, &image(0), false);
        assert!(matches!(again, Ok(Begun::Before(_))));
        assert_eq!(refused(&pulls, &four, 40, false), Some(Limit::Fetches));
        let configured = greedy(&pulls, &four, 50, true);
        assert_eq!(
            configured.len(),
            1,
            "one is kept for clients without a pull"
        );
        let last = greedy(&pulls, &five, 60, true);
        assert_eq!(last.len(), 1);
        drop(unconfigured);
        assert_eq!(greedy(&pulls, &four, 70, false).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_that_no_client_waits_for_yields_its_place() {
        let (pulls, [one, two, three, four, five]) = (Pulls::default(), clients());
        let mut most = greedy(&pulls, &one, 0, false);
        let mut some = greedy(&pulls, &two, 10, false);
        let mut few = greedy(&pulls, &three, 20, false);
        tokio::time::sleep(AWAITED / 2).await;
        // A request still waits for the oldest.
        assert!(pulls.begin(&two, &image(0), false).is_ok());
        assert_eq!(refused(&pulls, &four, 30, false), Some(Limit::Fetches));
        tokio::time::sleep(AWAITED / 2).await;
        let placed = pulls.begin(&four, &image(30), false);
        assert!(matches!(placed, Ok(Begun::Now(..))));
        let mut is_lost = |(_, lost): &mut (Place, oneshot::Receiver<()>)| {
            lost.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let lost: Vec<_> = most.iter_mut().map(&mut is_lost).collect();
        assert_eq!(lost, [false, true, false]);
        let mut others = some.iter_mut().chain(&mut few);
        assert!(!others.any(is_lost));
        // The end of a pull without a place takes no place from its successor.
        let again = pulls.begin(&five, &image(1), false);
        assert!(matches!(again, Ok(Begun::Now(..))), "another yields");
        most.remove(1);
        assert!(matches!(
            pulls.begin(&four, &image(1), false),
            Ok(Begun::Before(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_ends_when_no_request_asks_for_it() {
        let (pulls, [one]) = (Pulls::default(), clients());
        let Ok(Begun::Now(place, _lost)) = pulls.begin(&one, &image(0), false) else {
            panic!("there are free places");
        };
        let begun = Instant::now();
        tokio::time::sleep(MAX_UNASKED / 2).await;
        assert!(pulls.begin(&one, &image(0), false).is_ok());
        place.unasked().await;
        assert!(begun.elapsed() >= MAX_UNASKED + MAX_UNASKED / 2);
    }
}
