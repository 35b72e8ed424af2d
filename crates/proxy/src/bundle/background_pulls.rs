//! Background pulls of images that bundle requests need.
//!
//! 1. At most [`MAX_PULLS`] pulls have a place, and [`MAX_PER_CLIENT`] of one client.
//! 2. A quarter of the places is reserved for configured registries.
//! 3. One place is reserved for clients without a pull. The same holds for the places that unconfigured registries may
//!    use.
//! 4. A pull goes on when its client leaves. A request asks for it again every second. When no request did so within
//!    [`YIELD_AFTER`], the pull yields its place to another pull. The client with most pulls yields first.
//! 5. A pull that no request asked for within [`MAX_UNASKED`] loses its place, too.
//! 6. A pull without a place begins no download. Its running downloads end as those of a client that left: they yield to
//!    other downloads, and their bytes stay staged.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::Reference;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::Error;
use crate::limits::client_usage::ClientUsage;
use crate::limits::limit::Limit;
use crate::limits::share::{configured_reserve, leaves_no_room};

/// Images at once: each has three downloads.
const MAX_PULLS: usize = 8;
/// Of them for one client: its downloads are counted as those that it asks for itself.
const MAX_PER_CLIENT: usize = 3;
/// Places that are reserved for clients without a pull.
const RESERVED: usize = 1;
/// A client waits for a pull that it asked for within this time. Clients ask again every second.
const YIELD_AFTER: Duration = Duration::from_secs(30);
/// A pull ends when no request asked for it within this time.
const MAX_UNASKED: Duration = Duration::from_secs(600);
/// For how long a failure is told to those who ask, before another pull is begun.
const FAILURE_TTL: Duration = Duration::from_secs(10);
/// Failures that are remembered.
const MAX_FAILED: usize = 256;

/// By where they are pulled from: what one registry sends slowly, or not at all, is not told of another.
#[derive(Clone, Default)]
pub(crate) struct BackgroundPulls(Arc<Mutex<PullTable>>);

#[derive(Default)]
struct PullTable {
    by_image: HashMap<Reference, PullState>,
    next_id: u64,
}

enum PullState {
    Running(RunningPull),
    Failed(String, Instant),
}

/// A pull with a place. Dropping this tells its task that it lost the place.
struct RunningPull {
    id: u64,
    client: Arc<ClientUsage>,
    is_configured: bool,
    progress: Progress,
    /// When a request asked for it last.
    last_asked: Instant,
    _slot: oneshot::Sender<()>,
}

impl PullTable {
    fn running(&self) -> impl Iterator<Item = (&Reference, &RunningPull)> {
        self.by_image
            .iter()
            .filter_map(|(image, state)| match state {
                PullState::Running(running) => Some((image, running)),
                PullState::Failed(..) => None,
            })
    }

    /// The pull `id`, while it has its place.
    fn get_mut(&mut self, image: &Reference, id: u64) -> Option<&mut RunningPull> {
        match self.by_image.get_mut(image) {
            Some(PullState::Running(running)) if running.id == id => Some(running),
            _ => None,
        }
    }

    /// The limit that stops `client` from pulling another image; `None` when it may. Computed as if the pull `without` had
    /// ended.
    fn obstacle(
        &self,
        client: &Arc<ClientUsage>,
        is_configured: bool,
        without: Option<u64>,
    ) -> Option<Limit> {
        let is_own = |it: &&RunningPull| Arc::ptr_eq(&it.client, client);
        let running = || {
            let running = self.running().map(|(_, it)| it);
            running.filter(|it| Some(it.id) != without)
        };
        let own = running().filter(is_own).count();
        if own >= MAX_PER_CLIENT {
            return Some(Limit::FetchesPerClient);
        }
        let unconfigured = || running().filter(|it| !it.is_configured);
        let of_unconfigured = (
            unconfigured().filter(is_own).count(),
            unconfigured().count(),
        );
        let for_unconfigured = MAX_PULLS - configured_reserve(MAX_PULLS);
        let is_full = leaves_no_room((own, running().count()), 1, MAX_PULLS, RESERVED)
            || (!is_configured && leaves_no_room(of_unconfigured, 1, for_unconfigured, RESERVED));
        is_full.then_some(Limit::Fetches)
    }

    /// The pull that yields its place to one of `client`.
    fn yielding(&self, client: &Arc<ClientUsage>, is_configured: bool) -> Option<Reference> {
        let held_by = |of: &Arc<ClientUsage>| {
            let running = self.running();
            running
                .filter(|(_, it)| Arc::ptr_eq(&it.client, of))
                .count()
        };
        let idle = self.running().filter(|(_, it)| {
            it.last_asked.elapsed() >= YIELD_AFTER
                && self.obstacle(client, is_configured, Some(it.id)).is_none()
        });
        let most = idle.max_by_key(|(_, it)| (held_by(&it.client), Reverse(it.id)));
        most.map(|(image, _)| image.clone())
    }
}

impl BackgroundPulls {
    fn table(&self) -> MutexGuard<'_, PullTable> {
        self.0.lock()
    }

    /// Counts a pull for `client`, unless it is under way, whoever asked first.
    pub(crate) fn begin(
        &self,
        client: &Arc<ClientUsage>,
        reference: &Reference,
        is_configured: bool,
    ) -> Result<PullStart, Error> {
        let mut table = self.table();
        match table.by_image.get_mut(reference) {
            Some(PullState::Running(running)) => {
                running.last_asked = Instant::now();
                return Ok(PullStart::Running(running.progress));
            }
            Some(PullState::Failed(why, at)) if at.elapsed() < FAILURE_TTL => {
                return Err(Error::Pull(why.clone()));
            }
            _ => {}
        }
        if let Some(limit) = table.obstacle(client, is_configured, None) {
            let yielding = table.yielding(client, is_configured).ok_or(limit)?;
            table.by_image.remove(&yielding);
        }
        if table.by_image.len() >= MAX_FAILED {
            let is_running = |state: &PullState| matches!(state, PullState::Running(_));
            table.by_image.retain(|_, state| is_running(state));
        }
        let (held, lost) = oneshot::channel();
        let id = table.next_id;
        table.next_id += 1;
        let running = RunningPull {
            id,
            client: client.clone(),
            is_configured,
            progress: JUST_STARTED,
            last_asked: Instant::now(),
            _slot: held,
        };
        let state = PullState::Running(running);
        table.by_image.insert(reference.clone(), state);
        let slot = PullSlot {
            pulls: self.clone(),
            image: reference.clone(),
            id,
        };
        Ok(PullStart::Started(slot, lost))
    }
}

/// Nothing is known of it yet.
pub(crate) const JUST_STARTED: Progress = Progress {
    stage: Stage::Pull,
    done: 0,
    total: 0,
};

pub(crate) enum PullStart {
    Running(Progress),
    /// The receiver resolves when the pull has lost its place.
    Started(PullSlot, oneshot::Receiver<()>),
}

/// The place of one pull, which ends when this is dropped. Does nothing once the pull has lost its place.
pub(crate) struct PullSlot {
    pulls: BackgroundPulls,
    pub(crate) image: Reference,
    id: u64,
}

impl PullSlot {
    pub(crate) fn report(&self, progress: Progress) {
        if let Some(running) = self.pulls.table().get_mut(&self.image, self.id) {
            running.progress = progress;
        }
    }

    /// Resolves when no request asked for this pull within [`MAX_UNASKED`].
    pub(crate) async fn unasked(&self) {
        loop {
            let last_asked = self
                .pulls
                .table()
                .get_mut(&self.image, self.id)
                .map(|it| it.last_asked);
            let Some(last_asked) = last_asked else {
                return std::future::pending().await;
            };
            if last_asked.elapsed() >= MAX_UNASKED {
                return;
            }
            tokio::time::sleep_until(last_asked + MAX_UNASKED).await;
        }
    }

    pub(crate) fn leave(&self) {
        let mut table = self.pulls.table();
        if table.get_mut(&self.image, self.id).is_some() {
            table.by_image.remove(&self.image);
        }
    }

    pub(crate) fn failed(&self, why: String) {
        let mut table = self.pulls.table();
        if table.get_mut(&self.image, self.id).is_some() {
            let failed = PullState::Failed(why, Instant::now());
            table.by_image.insert(self.image.clone(), failed);
        }
    }
}

impl Drop for PullSlot {
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

    fn clients<const N: usize>() -> [Arc<ClientUsage>; N] {
        std::array::from_fn(|_| Arc::new(ClientUsage::operator()))
    }

    /// The places that the client gets, of images from `first` on.
    fn greedy(
        pulls: &BackgroundPulls,
        client: &Arc<ClientUsage>,
        first: usize,
        is_configured: bool,
    ) -> Vec<(PullSlot, oneshot::Receiver<()>)> {
        let begin = |nth| match pulls.begin(client, &image(nth), is_configured) {
            Ok(PullStart::Started(slot, lost)) => Some((slot, lost)),
            _ => None,
        };
        (first..first + MAX_PULLS).map_while(begin).collect()
    }

    fn refused(
        pulls: &BackgroundPulls,
        client: &Arc<ClientUsage>,
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
        let (pulls, [one, two, three, four, five]) = (BackgroundPulls::default(), clients());
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
        assert!(matches!(again, Ok(PullStart::Running(_))));
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
        let (pulls, [one, two, three, four, five]) = (BackgroundPulls::default(), clients());
        let mut most = greedy(&pulls, &one, 0, false);
        let mut some = greedy(&pulls, &two, 10, false);
        let mut few = greedy(&pulls, &three, 20, false);
        tokio::time::sleep(YIELD_AFTER / 2).await;
        // A request still waits for the oldest.
        assert!(pulls.begin(&two, &image(0), false).is_ok());
        assert_eq!(refused(&pulls, &four, 30, false), Some(Limit::Fetches));
        tokio::time::sleep(YIELD_AFTER / 2).await;
        let placed = pulls.begin(&four, &image(30), false);
        assert!(matches!(placed, Ok(PullStart::Started(..))));
        let mut is_lost = |(_, lost): &mut (PullSlot, oneshot::Receiver<()>)| {
            lost.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let lost: Vec<_> = most.iter_mut().map(&mut is_lost).collect();
        assert_eq!(lost, [false, true, false]);
        let mut others = some.iter_mut().chain(&mut few);
        assert!(!others.any(is_lost));
        // The end of a pull without a place takes no place from its successor.
        let again = pulls.begin(&five, &image(1), false);
        assert!(
            matches!(again, Ok(PullStart::Started(..))),
            "another yields"
        );
        most.remove(1);
        assert!(matches!(
            pulls.begin(&four, &image(1), false),
            Ok(PullStart::Running(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_ends_when_no_request_asks_for_it() {
        let (pulls, [one]) = (BackgroundPulls::default(), clients());
        let Ok(PullStart::Started(slot, _lost)) = pulls.begin(&one, &image(0), false) else {
            panic!("there are free places");
        };
        let begun = Instant::now();
        tokio::time::sleep(MAX_UNASKED / 2).await;
        assert!(pulls.begin(&one, &image(0), false).is_ok());
        slot.unasked().await;
        assert!(begun.elapsed() >= MAX_UNASKED + MAX_UNASKED / 2);
    }
}
