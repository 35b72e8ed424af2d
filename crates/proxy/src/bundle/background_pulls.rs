//! Decides which background pulls may run. A background pull downloads an image that a bundle
//! request needs and the cache lacks. The running pulls have slots, by these rules:
//!
//! 1. At most [`MAX_PULLS`] pulls have a slot. At most [`MAX_PER_CLIENT`] of these pulls belong to
//!    one client.
//! 2. A quarter of the slots is reserved for images of configured registries.
//! 3. One slot is reserved for clients that have no running pull. One of the slots that images of
//!    unconfigured registries may use is reserved in the same way.
//! 4. A pull continues after its client has disconnected. A client that waits for an image repeats
//!    its request every second. If no request came within [`YIELD_TIMEOUT`], the pull yields its
//!    slot to another pull. The client with the most pulls yields first.
//! 5. If no request for the image came within [`UNREQUESTED_TIMEOUT`], the pull loses its slot even
//!    if no other pull needs the slot.
//! 6. A pull without a slot begins no download. The running downloads of such a pull yield to other
//!    downloads, like the downloads of a client that has disconnected. The bytes that these
//!    downloads fetched stay staged for a later pull.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pierhead_bundle::api::{Progress, Stage};
use pierhead_oci::Reference;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::Error;
use crate::limits::held_slots::{HeldSlots, ReachedBound, SlotBounds, SlotHolder};
use crate::limits::limit::Limit;

/// Maximum number of running background pulls. Each pull runs three downloads.
const MAX_PULLS: usize = 8;
/// Maximum number of background pulls of one client. The downloads of such a pull count as
/// downloads of that client.
const MAX_PER_CLIENT: usize = 3;
const BOUNDS: SlotBounds = SlotBounds {
    all: MAX_PULLS,
    per_client: MAX_PER_CLIENT,
    // One slot stays free for clients that have no running pull.
    min_share: 1,
};
/// Time after the last request for the image of a background pull, from which on the pull yields
/// its slot. Clients that wait for an image repeat their request every second.
const YIELD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time without a request for the image of a background pull. After this time, the pull
/// loses its slot.
const UNREQUESTED_TIMEOUT: Duration = Duration::from_secs(600);
/// How long requests for an image get the error of a failed pull, before another pull starts.
const FAILURE_TTL: Duration = Duration::from_secs(10);
/// Maximum number of images in the table: running background pulls and remembered failures
/// together.
const MAX_FAILED: usize = 256;

/// Running and failed background pulls, by image reference: a pull of the same digest from another
/// registry is a separate pull. A general-purpose cache cannot hold this table, because a running
/// pull has no TTL, and because each image has either a running pull or a failure.
#[derive(Clone, Default)]
pub(crate) struct BackgroundPulls(Arc<Mutex<PullTable>>);

#[derive(Default)]
struct PullTable {
    by_image: HashMap<Reference, PullState>,
    held: HeldSlots,
    next_id: u64,
}

enum PullState {
    Running(RunningPull),
    Failed(String, Instant),
}

/// A pull with a slot. Dropping this value tells the task of the pull that it lost the slot.
struct RunningPull {
    id: u64,
    holder: SlotHolder,
    progress: Progress,
    /// Time of the last request for the image of this pull.
    last_request: Instant,
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

    /// Returns the running pull `id` of the image, unless it has lost its slot.
    fn get_mut(&mut self, image: &Reference, id: u64) -> Option<&mut RunningPull> {
        match self.by_image.get_mut(image) {
            Some(PullState::Running(running)) if running.id == id => Some(running),
            _ => None,
        }
    }

    /// Returns the limit that prevents `holder` from pulling another image, or `None` if `holder`
    /// may pull another image. If `without` is given, the pull of `without` counts as ended.
    fn obstacle(&self, holder: SlotHolder, without: Option<SlotHolder>) -> Option<Limit> {
        let reached = self.held.obstacle(holder, BOUNDS, without);
        reached.map(|bound| match bound {
            ReachedBound::PerClient => Limit::DownloadsPerClient,
            ReachedBound::All => Limit::UpstreamRequests,
        })
    }

    /// Returns the image whose pull yields its slot to a pull of `holder`.
    fn yielding(&self, holder: SlotHolder) -> Option<Reference> {
        let idle = self.running().filter(|(_, it)| {
            it.last_request.elapsed() >= YIELD_TIMEOUT
                && self.obstacle(holder, Some(it.holder)).is_none()
        });
        let idle = idle.map(|(_, it)| (it.id, it.holder.client));
        let first = self.held.yields_first(idle)?;
        let mut running = self.running();
        let (image, _) = running.find(|(_, it)| it.id == first)?;
        Some(image.clone())
    }

    /// Replaces or removes the state of `image`. If a pull of this image was running, frees its
    /// slot.
    fn set(&mut self, image: &Reference, state: Option<PullState>) {
        let old = match state {
            Some(state) => self.by_image.insert(image.clone(), state),
            None => self.by_image.remove(image),
        };
        if let Some(PullState::Running(running)) = old {
            self.held.remove(running.holder);
        }
    }
}

impl BackgroundPulls {
    fn table(&self) -> MutexGuard<'_, PullTable> {
        self.0.lock()
    }

    /// Takes a slot for a pull, unless the image is already being pulled.
    pub(crate) fn begin(
        &self,
        holder: SlotHolder,
        reference: &Reference,
    ) -> Result<PullStart, Error> {
        let mut table = self.table();
        match table.by_image.get_mut(reference) {
            Some(PullState::Running(running)) => {
                running.last_request = Instant::now();
                return Ok(PullStart::Running(running.progress));
            }
            Some(PullState::Failed(why, at)) if at.elapsed() < FAILURE_TTL => {
                return Err(Error::Pull(why.clone()));
            }
            _ => {}
        }
        if let Some(limit) = table.obstacle(holder, None) {
            let yielding = table.yielding(holder).ok_or(limit)?;
            table.set(&yielding, None);
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
            holder,
            progress: JUST_STARTED,
            last_request: Instant::now(),
            _slot: held,
        };
        table.set(reference, Some(PullState::Running(running)));
        table.held.add(holder);
        let slot = PullSlot {
            pulls: self.clone(),
            image: reference.clone(),
            id,
        };
        Ok(PullStart::Started(slot, lost))
    }
}

/// The progress of a pull that has just started.
pub(crate) const JUST_STARTED: Progress = Progress {
    stage: Stage::Pull,
    done: 0,
    total: 0,
};

pub(crate) enum PullStart {
    Running(Progress),
    /// The pull has started. The receiver resolves when the pull has lost its slot.
    Started(PullSlot, oneshot::Receiver<()>),
}

/// The slot of one pull. Dropping this value releases the slot, unless the pull has already lost
/// it.
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

    /// Resolves when no request for the image of this pull came within [`UNREQUESTED_TIMEOUT`].
    pub(crate) async fn unrequested(&self) {
        loop {
            let last_request = self
                .pulls
                .table()
                .get_mut(&self.image, self.id)
                .map(|it| it.last_request);
            let Some(last_request) = last_request else {
                return std::future::pending().await;
            };
            if last_request.elapsed() >= UNREQUESTED_TIMEOUT {
                return;
            }
            tokio::time::sleep_until(last_request + UNREQUESTED_TIMEOUT).await;
        }
    }

    pub(crate) fn leave(&self) {
        let mut table = self.pulls.table();
        if table.get_mut(&self.image, self.id).is_some() {
            table.set(&self.image, None);
        }
    }

    pub(crate) fn failed(&self, why: String) {
        let mut table = self.pulls.table();
        if table.get_mut(&self.image, self.id).is_some() {
            let failed = PullState::Failed(why, Instant::now());
            table.set(&self.image, Some(failed));
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
    use pierhead_host::ClientKey;

    use super::*;

    fn image(nth: usize) -> Reference {
        format!("registry.example/app-{nth}:1").parse().unwrap()
    }

    fn clients<const N: usize>() -> [ClientKey; N] {
        std::array::from_fn(|nth| ClientKey::of([10, 0, 0, u8::try_from(nth).unwrap()].into()))
    }

    fn begin(
        pulls: &BackgroundPulls,
        client: &ClientKey,
        nth: usize,
        is_configured: bool,
    ) -> Result<PullStart, Error> {
        let holder = SlotHolder {
            client: *client,
            is_configured,
        };
        pulls.begin(holder, &image(nth))
    }

    /// Returns the slots that one client gets when it requests many images, from image number
    /// `first` on.
    fn greedy(
        pulls: &BackgroundPulls,
        client: &ClientKey,
        first: usize,
        is_configured: bool,
    ) -> Vec<(PullSlot, oneshot::Receiver<()>)> {
        let begin = |nth| match begin(pulls, client, nth, is_configured) {
            Ok(PullStart::Started(slot, lost)) => Some((slot, lost)),
            _ => None,
        };
        (first..first + MAX_PULLS).map_while(begin).collect()
    }

    fn refused(
        pulls: &BackgroundPulls,
        client: &ClientKey,
        nth: usize,
        is_configured: bool,
    ) -> Option<Limit> {
        match begin(pulls, client, nth, is_configured) {
            Err(Error::Limited(limit)) => Some(limit),
            _ => None,
        }
    }

    #[tokio::test]
    async fn clients_share_the_slots_of_pulls() {
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
        assert_eq!(
            counts,
            (3, 2, 1),
            "a quarter is reserved, and one of the rest"
        );
        assert_eq!(
            refused(&pulls, &one, 40, false),
            Some(Limit::DownloadsPerClient)
        );
        // A request for a pull that already runs needs no slot.
        let again = begin(&pulls, &four, 0, false);
        assert!(matches!(again, Ok(PullStart::Running(_))));
        assert_eq!(
            refused(&pulls, &four, 40, false),
            Some(Limit::UpstreamRequests)
        );
        let configured = greedy(&pulls, &four, 50, true);
        assert_eq!(
            configured.len(),
            1,
            "one is reserved for clients without a pull"
        );
        let last = greedy(&pulls, &five, 60, true);
        assert_eq!(last.len(), 1);
        drop(unconfigured);
        assert_eq!(greedy(&pulls, &four, 70, false).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_without_waiting_clients_yields_its_slot() {
        let (pulls, [one, two, three, four, five]) = (BackgroundPulls::default(), clients());
        let mut most = greedy(&pulls, &one, 0, false);
        let mut some = greedy(&pulls, &two, 10, false);
        let mut few = greedy(&pulls, &three, 20, false);
        tokio::time::sleep(YIELD_TIMEOUT / 2).await;
        // A client still waits for the image of the oldest pull, so that pull keeps its slot.
        assert!(begin(&pulls, &two, 0, false).is_ok());
        assert_eq!(
            refused(&pulls, &four, 30, false),
            Some(Limit::UpstreamRequests)
        );
        tokio::time::sleep(YIELD_TIMEOUT / 2).await;
        let started = begin(&pulls, &four, 30, false);
        assert!(matches!(started, Ok(PullStart::Started(..))));
        let mut is_lost = |(_, lost): &mut (PullSlot, oneshot::Receiver<()>)| {
            lost.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let lost: Vec<_> = most.iter_mut().map(&mut is_lost).collect();
        assert_eq!(lost, [false, true, false]);
        let mut others = some.iter_mut().chain(&mut few);
        assert!(!others.any(is_lost));
        // The end of a pull that lost its slot does not release the slot of the pull that took it
        // over.
        let again = begin(&pulls, &five, 1, false);
        assert!(
            matches!(again, Ok(PullStart::Started(..))),
            "another yields"
        );
        most.remove(1);
        assert!(matches!(
            begin(&pulls, &four, 1, false),
            Ok(PullStart::Running(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_ends_when_no_request_for_it_comes() {
        let (pulls, [one]) = (BackgroundPulls::default(), clients());
        let Ok(PullStart::Started(slot, _lost)) = begin(&pulls, &one, 0, false) else {
            panic!("there are free slots");
        };
        let started = Instant::now();
        tokio::time::sleep(UNREQUESTED_TIMEOUT / 2).await;
        assert!(begin(&pulls, &one, 0, false).is_ok());
        slot.unrequested().await;
        assert!(started.elapsed() >= UNREQUESTED_TIMEOUT + UNREQUESTED_TIMEOUT / 2);
    }
}
