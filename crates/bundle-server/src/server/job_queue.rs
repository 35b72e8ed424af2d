//! The queue of the bundle server's background jobs: first the indexing of images, then patches and
//! optimization by turns, and regular maintenance. Patches are made for a pair: a new image and an
//! older image of the same repository. Optimization compresses the frames of an image again, at a
//! higher level.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pierhead_host::{ClientKey, FairShare, WaiterId};
use pierhead_oci::Digest;

use super::config::Config;

/// Maximum time that a thread sleeps without a job. The server tries a failed image again after
/// this time.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between two runs of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum number of other images whose indexing begins before an image that was interrupted often.
/// After this number, the image no longer waits for other images.
const MAX_PASSED: u64 = 16;
/// Number of interruptions after which an image waits for all others. The time slice doubles only
/// up to this number, so the longest time slice is 12 s.
const MAX_YIELDS: u32 = 3;
/// Maximum number of pairs of images in the queue for patches. For a pair that does not fit, the
/// server makes patches only when a client requests the update.
const MAX_PAIRS: usize = 1000;

/// The jobs that wait, without the lock, which [`JobQueue`] adds.
struct Queue {
    /// The images to index. Clients take turns, as [`FairShare`] defines.
    images: FairShare<ClientKey, QueuedImage>,
    /// The queue position of each image, and whether a client waits for it.
    positions: HashMap<Digest, (ClientKey, WaiterId, bool)>,
    pairs: VecDeque<(Digest, Digest)>,
    optimize: VecDeque<Digest>,
    reorder: VecDeque<Digest>,
    /// Whether the last low-priority job made the patches of a pair of images.
    last_was_pair: bool,
    last_maintenance: Option<Instant>,
    /// Number of jobs that a thread has taken and not finished.
    running: usize,
    /// Number of images whose indexing began, since the start of the server.
    started_images: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            // There is no limit per client, since the number of indexing threads limits the images
            // in progress.
            images: FairShare::new(usize::MAX),
            positions: HashMap::new(),
            pairs: VecDeque::new(),
            optimize: VecDeque::new(),
            reorder: VecDeque::new(),
            last_was_pair: false,
            last_maintenance: None,
            running: 0,
            started_images: 0,
        }
    }
}

/// An image that waits for indexing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuedImage {
    pub(super) manifest: Digest,
    /// The client on whose behalf the image is indexed.
    pub(super) client: ClientKey,
    /// Number of failed attempts to index the image.
    pub(super) tries: u32,
    /// Number of times that indexing was interrupted for another client.
    pub(super) yields: u32,
    /// Earliest time of the next attempt to index the image.
    pub(super) at: Option<Instant>,
    /// Whether a client waits for the image.
    pub(super) is_awaited: bool,
    /// CPU time of all earlier attempts to index the image. This time counts against the CPU time
    /// budget of the image.
    pub(super) used: Duration,
    /// Number of attempts with a longer time slice, including the current attempt.
    pub(super) long_tries: u32,
    /// Whether the current attempt has a longer time slice, because the image waited for
    /// [`MAX_PASSED`] other images.
    pub(super) is_long: bool,
    /// The value of `Queue::started_images` until which the image waits for the images of all other
    /// clients.
    pub(super) last_until: u64,
}

/// Returns the CPU time after which this attempt can be interrupted. This time doubles with each of
/// the first interruptions, and later with each long attempt.
pub(super) fn time_slice(config: &Config, image: &QueuedImage) -> Duration {
    let doublings = match image.is_long {
        true => (MAX_YIELDS - 1).saturating_add(image.long_tries),
        false => image.yields.min(MAX_YIELDS - 1),
    };
    config
        .time_slice
        .saturating_mul(2_u32.saturating_pow(doublings))
}

impl QueuedImage {
    pub(super) const fn new(manifest: Digest, client: ClientKey) -> Self {
        Self {
            manifest,
            client,
            tries: 0,
            yields: 0,
            at: None,
            is_awaited: false,
            used: Duration::ZERO,
            long_tries: 0,
            is_long: false,
            last_until: 0,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    /// Whether the image was interrupted so often that it may interrupt no other image.
    fn was_interrupted_often(&self) -> bool {
        self.yields >= MAX_YIELDS
    }

    /// Whether the image waits for the images of all other clients. `started_images` is the number
    /// of images whose indexing has begun so far.
    fn is_last(&self, started_images: u64) -> bool {
        self.was_interrupted_often() && started_images < self.last_until
    }
}

pub(super) enum Job {
    Index(QueuedImage),
    /// Makes optimized patches from the second image to the first image.
    Pair(Digest, Digest),
    /// Makes optimized frames of an image.
    Optimize(Digest),
    /// Reorders the frames of an image.
    Reorder(Digest),
    Maintain,
    /// Fills a new image database, after the old database was damaged.
    RebuildImageDatabase,
}

/// The kind of jobs that a background thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// The jobs that index images.
    Index,
    /// All other jobs, at low priority, while no image is being indexed.
    Optimize,
}

impl Queue {
    /// Returns the number of jobs that wait or run.
    fn len(&self) -> usize {
        let wait =
            self.images.waiting() + self.pairs.len() + self.optimize.len() + self.reorder.len();
        wait + self.running
    }

    fn is_empty(&self) -> bool {
        self.len() == self.running
    }

    fn index(&mut self, manifest: Digest, client: ClientKey) {
        self.push(QueuedImage::new(manifest, client));
    }

    /// Marks an image as awaited by a client. In the queue, the image goes before all images that
    /// no client waits for. If the queue of `client` is shorter than the queue in which the image
    /// waits, the image moves to the queue of `client`.
    fn prioritize(&mut self, manifest: &Digest, client: ClientKey) {
        let Some((of, id, is_awaited)) = self.positions.get(manifest).copied() else {
            return;
        };
        let is_shorter = self.images.waiting_of(&client) < self.images.waiting_of(&of);
        // If a client already waits for the image, the image keeps its position, however often
        // clients ask for it.
        if is_awaited && !is_shorter {
            return;
        }
        if let Some(mut image) = self.images.cancel(&of, id) {
            (image.client, image.is_awaited) = (client, true);
            self.wait(image);
        }
    }

    /// Adds an image to the queue, unless the image is already in it.
    fn push(&mut self, image: QueuedImage) {
        if !self.positions.contains_key(&image.manifest) {
            let last_until = self.started_images.saturating_add(MAX_PASSED);
            self.wait(QueuedImage {
                last_until,
                ..image
            });
        }
    }

    fn wait(&mut self, image: QueuedImage) {
        let QueuedImage {
            manifest,
            client,
            is_awaited,
            ..
        } = image;
        let id = self.images.wait(&client, image);
        self.positions.insert(manifest, (client, id, is_awaited));
    }

    /// Whether a client waits for an image that could begin now. While a client waits, the job in
    /// progress does not pause.
    fn is_wanted(&self, now: Instant) -> bool {
        let mut waiters = self.images.waiters();
        waiters.any(|(_, it)| it.is_awaited && it.is_due(now))
    }

    /// Whether a client with fewer threads than `client` waits for an image that may start now and
    /// may interrupt the image of `client`.
    fn is_wanted_by_other(&self, client: &ClientKey, now: Instant) -> bool {
        let held = self.images.held_by(client);
        let mut waiters = self.images.waiters();
        waiters.any(|(other, it)| {
            let may_interrupt = it.is_awaited && it.is_due(now) && !it.was_interrupted_often();
            may_interrupt && other != client && self.images.held_by(other) < held
        })
    }

    fn pair(&mut self, new: Digest, old: Digest) {
        if self.pairs.len() < MAX_PAIRS && !self.pairs.contains(&(new, old)) {
            self.pairs.push_back((new, old));
        }
    }

    fn optimize(&mut self, manifest: Digest) {
        if !self.optimize.contains(&manifest) {
            self.optimize.push_back(manifest);
        }
    }

    fn reorder(&mut self, manifest: Digest) {
        if !self.reorder.contains(&manifest) {
            self.reorder.push_back(manifest);
        }
    }

    /// Puts a cancelled job back into the queue, before all other jobs of its kind.
    fn give_back(&mut self, job: Job) {
        match job {
            Job::Pair(new, old) => self.pairs.push_front((new, old)),
            Job::Optimize(manifest) => self.optimize.push_front(manifest),
            Job::Reorder(manifest) => self.reorder.push_front(manifest),
            // The list of images (`ImageStore`) requeues an image itself. Maintenance is never
            // cancelled.
            Job::Index(_) | Job::Maintain | Job::RebuildImageDatabase => {}
        }
    }

    /// Takes the next job. Images that a client waits for come first, and clients take turns.
    /// Images that were interrupted often come last. But after [`MAX_PASSED`] other images have
    /// begun, such an image gets an attempt with a longer time slice.
    fn take(&mut self, only_awaited: bool, now: Instant) -> Option<Job> {
        let is_next =
            |image: &QueuedImage| (image.is_awaited || !only_awaited) && image.is_due(now);
        let started_images = self.started_images;
        let is_other = |image: &QueuedImage| is_next(image) && !image.is_last(started_images);
        let has_other = self.images.waiters().any(|(_, image)| is_other(image));
        let is_next =
            |image: &QueuedImage| is_next(image) && !(has_other && image.is_last(started_images));
        let (_, mut image) = self.images.next(|_, _, image| is_next(image))?;
        self.positions.remove(&image.manifest);
        self.started_images += 1;
        image.is_long = image.was_interrupted_often() && !image.is_last(started_images);
        image.long_tries += u32::from(image.is_long);
        Some(Job::Index(image))
    }

    fn maintenance(&mut self, now: Instant) -> Option<Job> {
        let is_due = self
            .last_maintenance
            .is_none_or(|at| now.duration_since(at) >= MAINTENANCE_INTERVAL);
        is_due.then(|| {
            self.last_maintenance = Some(now);
            Job::Maintain
        })
    }

    /// Takes the next job that may run even when background work is paused: an image that a client
    /// waits for, or maintenance, which frees disk space.
    fn next_urgent(&mut self, lane: Lane, now: Instant) -> Option<Job> {
        match lane {
            Lane::Index => self.take(true, now),
            Lane::Optimize => self.maintenance(now),
        }
    }

    fn next(&mut self, lane: Lane, now: Instant) -> Option<Job> {
        if lane == Lane::Index {
            return self.take(true, now).or_else(|| self.take(false, now));
        }
        if self.images.waiters().any(|(_, it)| it.is_due(now)) {
            return None;
        }
        if let Some(maintain) = self.maintenance(now) {
            return Some(maintain);
        }
        if let Some(manifest) = self.reorder.pop_front() {
            return Some(Job::Reorder(manifest));
        }
        // Jobs for pairs and jobs for optimization take turns, so that neither type of job starves.
        if (!self.last_was_pair || self.optimize.is_empty())
            && let Some((new, old)) = self.pairs.pop_front()
        {
            self.last_was_pair = true;
            return Some(Job::Pair(new, old));
        }
        self.last_was_pair = false;
        self.optimize.pop_front().map(Job::Optimize)
    }
}

/// The queue of jobs behind a lock, and the signal for the threads that wait for a job.
pub(super) struct JobQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Number of images that are being indexed. Low-priority work pauses while this number is not
    /// 0.
    indexing: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

/// Which jobs a thread may take from the [`JobQueue`] now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Nothing,
    /// Only images that a client waits for, and maintenance.
    Urgent,
    All,
}

impl JobQueue {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            indexing: Arc::default(),
            stop: Arc::default(),
        }
    }

    /// Queues an image for indexing, unless the image is already in the queue.
    pub(super) fn index(&self, manifest: Digest, client: ClientKey) {
        self.queue.lock().index(manifest, client);
        self.changed.notify_all();
    }

    /// Puts an image back into the queue, with the state of its earlier attempts.
    pub(super) fn push(&self, image: QueuedImage) {
        self.queue.lock().push(image);
    }

    /// Moves an image before all images that no client waits for.
    pub(super) fn prioritize(&self, manifest: &Digest, client: ClientKey) {
        self.queue.lock().prioritize(manifest, client);
    }

    /// Queues pairs (new image, old image) for optimized patches, which turn files of the old image
    /// into files of the new image.
    pub(super) fn pairs(&self, pairs: impl IntoIterator<Item = (Digest, Digest)>) {
        let mut queue = self.queue.lock();
        for (new, old) in pairs {
            queue.pair(new, old);
        }
        self.changed.notify_all();
    }

    /// Queues images whose fast frames the server will replace by optimized frames.
    pub(super) fn optimize(&self, images: impl IntoIterator<Item = Digest>) {
        let mut queue = self.queue.lock();
        images.into_iter().for_each(|image| queue.optimize(image));
    }

    /// Queues an image, so that its frames are put into a new order.
    pub(super) fn reorder(&self, image: Digest) {
        self.queue.lock().reorder(image);
        self.changed.notify_all();
    }

    /// Puts a cancelled job back into the queue, before all other jobs of its kind.
    pub(super) fn give_back(&self, job: Job) {
        self.queue.lock().give_back(job);
    }

    /// Returns the number of jobs that wait or run.
    pub(super) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Whether a client waits for an image that could begin now.
    pub(super) fn is_wanted(&self) -> bool {
        self.queue.lock().is_wanted(Instant::now())
    }

    /// Whether a client with fewer threads than `client` waits for an image that may interrupt the
    /// image of `client`.
    pub(super) fn is_wanted_by_other(&self, client: &ClientKey) -> bool {
        let queue = self.queue.lock();
        queue.is_wanted_by_other(client, Instant::now())
    }

    /// Returns the shared counter of images that are being indexed.
    pub(super) fn indexing(&self) -> Arc<AtomicUsize> {
        self.indexing.clone()
    }

    /// Tells all background threads to stop.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Takes the lock before it wakes the threads. A thread that read the flag before the change
        // is asleep by then, so the wake-up reaches this thread.
        let _queue = self.queue.lock();
        self.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the flag that tells all threads to stop.
    pub(super) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Takes the next job that `permission` allows. If there is none, returns `None`, and with
    /// `sleeps` first sleeps until the queue changes, at most [`RETRY_INTERVAL`].
    pub(super) fn take(
        &self,
        lane: Lane,
        sleeps: bool,
        permission: impl FnOnce(bool) -> Permission,
    ) -> Option<Job> {
        let mut queue = self.queue.lock();
        if self.is_stopped() {
            return None;
        }
        let is_blocked = lane == Lane::Optimize && self.indexing.load(Ordering::Relaxed) > 0;
        let job = match permission(!queue.is_empty()) {
            Permission::Nothing => None,
            Permission::Urgent => queue.next_urgent(lane, Instant::now()),
            Permission::All if is_blocked => None,
            Permission::All => queue.next(lane, Instant::now()),
        };
        if job.is_some() {
            queue.running += 1;
            if lane == Lane::Index {
                self.indexing.fetch_add(1, Ordering::Relaxed);
            }
        } else if sleeps {
            self.changed.wait_for(&mut queue, RETRY_INTERVAL);
        }
        job
    }

    /// Counts a job that was never in the queue as running.
    pub(super) fn begin_unqueued(&self) {
        self.queue.lock().running += 1;
    }

    /// Counts a job as finished. The number of images in progress changes under the lock, so that a
    /// thread that waits for this change wakes up.
    pub(super) fn finish(&self, lane: Lane, client: Option<&ClientKey>) {
        let mut queue = self.queue.lock();
        queue.running -= 1;
        if let Some(client) = client {
            queue.images.release(client);
        }
        if lane == Lane::Index {
            self.indexing.fetch_sub(1, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests() -> [Digest; 3] {
        [1_u8, 2, 3].map(|seed| pierhead_toc::FileDigest::of(&[seed]).into())
    }

    fn client(nth: u8) -> ClientKey {
        ClientKey::of([10, 0, 0, nth].into())
    }

    fn image_of(job: Option<Job>) -> Option<Digest> {
        match job {
            Some(Job::Index(taken)) => Some(taken.manifest),
            _ => None,
        }
    }

    #[test]
    fn only_awaited_images_that_are_due_are_urgent() {
        let ([one, two, three], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        queue.index(one, client(1));
        queue.index(two, client(1));
        assert!(!queue.is_wanted(now));
        assert!(image_of(queue.next_urgent(Lane::Index, now)).is_none());
        queue.prioritize(&two, client(1));
        assert!(queue.is_wanted(now));
        assert_eq!(image_of(queue.next_urgent(Lane::Index, now)), Some(two));
        // The indexing of the image failed, and the image waits for its retry. Until the retry, the
        // job in progress may pause.
        let later = now + RETRY_INTERVAL;
        queue.push(QueuedImage {
            at: Some(later),
            is_awaited: true,
            ..QueuedImage::new(two, client(1))
        });
        queue.index(three, client(1));
        assert!(!queue.is_wanted(now) && queue.is_wanted(later));
        assert!(image_of(queue.next_urgent(Lane::Index, now)).is_none());
        assert_eq!(image_of(queue.next(Lane::Index, later)), Some(two));
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(one));
    }

    #[test]
    fn a_client_with_a_hundred_images_delays_another_client_by_one_image() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for nth in 0..100_u32 {
            let manifest = pierhead_toc::FileDigest::of(&nth.to_le_bytes()).into();
            queue.index(manifest, client(1));
            queue.prioritize(&manifest, client(1));
        }
        let [wanted, ..] = digests();
        assert!(image_of(queue.next(Lane::Index, now)).is_some());
        assert!(!queue.is_wanted_by_other(&client(1), now));
        // The first client also asks for the other client's image. The image of the other client
        // does not move behind the first client's hundred images.
        queue.index(wanted, client(1));
        queue.prioritize(&wanted, client(1));
        queue.prioritize(&wanted, client(2));
        queue.prioritize(&wanted, client(1));
        assert!(queue.is_wanted_by_other(&client(1), now));
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(wanted));
        // Each of the two clients has one thread, so neither client's image is interrupted.
        assert!(!queue.is_wanted_by_other(&client(1), now));
    }

    #[test]
    fn an_image_that_was_interrupted_often_waits_for_the_images_of_others() {
        let ([heavy, rival, small], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        let awaited = |manifest, of, yields| QueuedImage {
            is_awaited: true,
            yields,
            ..QueuedImage::new(manifest, client(of))
        };
        queue.push(awaited(heavy, 1, MAX_YIELDS));
        queue.push(awaited(rival, 2, MAX_YIELDS));
        for nth in 10..20_u8 {
            // The two images that take long were queued before the small image.
            let manifest = pierhead_toc::FileDigest::of(&[nth]).into();
            queue.push(awaited(manifest, nth, MAX_YIELDS - 1));
            assert_eq!(image_of(queue.next(Lane::Index, now)), Some(manifest));
            queue.images.release(&client(nth));
        }
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(heavy));
        // An image that was interrupted often does not interrupt another such image, so both
        // finish. A small image interrupts both of them.
        assert!(!queue.is_wanted_by_other(&client(1), now));
        queue.push(awaited(small, 3, 0));
        assert!(queue.is_wanted_by_other(&client(1), now));
        queue.images.release(&client(1));
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(small));
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(rival));
    }

    #[test]
    fn an_image_that_was_last_for_long_has_a_longer_attempt() {
        let (now, config) = (Instant::now(), Config::new("", 0, 0));
        let [heavy, ..] = digests();
        let mut queue = Queue::default();
        let mut taken = QueuedImage {
            is_awaited: true,
            yields: MAX_YIELDS,
            ..QueuedImage::new(heavy, client(1))
        };
        let mut small = 0_u32;
        for seconds in [24, 48] {
            queue.push(taken.clone());
            // Other clients request small images again and again.
            let mut passed = 0;
            taken = loop {
                small += 1;
                let manifest = pierhead_toc::FileDigest::of(&small.to_le_bytes()).into();
                queue.push(QueuedImage {
                    is_awaited: true,
                    ..QueuedImage::new(manifest, client(2))
                });
                match queue.next(Lane::Index, now) {
                    Some(Job::Index(image)) if image.manifest == heavy => break image,
                    Some(Job::Index(image)) => queue.images.release(&image.client),
                    _ => panic!("no image"),
                }
                passed += 1;
                assert!(passed < 100, "the heavy image starves");
            };
            assert!(passed >= MAX_PASSED, "{passed}");
            assert_eq!(time_slice(&config, &taken).as_secs(), seconds);
            queue.images.release(&taken.client);
            taken.yields += 1;
        }
    }

    #[test]
    fn the_time_before_an_interruption_stops_growing() {
        let config = Config::new("", 0, 0);
        let [image, ..] = digests();
        let seconds = [0, 1, 2, 3, 40].map(|yields| {
            let image = QueuedImage {
                yields,
                ..QueuedImage::new(image, client(1))
            };
            time_slice(&config, &image).as_secs()
        });
        assert_eq!(seconds, [3, 6, 12, 12, 12]);
    }

    #[test]
    fn an_awaited_image_comes_before_all_images_without_a_waiting_client() {
        let ([one, two, three], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        queue.index(one, client(2));
        queue.index(two, client(1));
        queue.index(three, client(1));
        queue.prioritize(&three, client(1));
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(three));
        // The other client has no thread, so its image comes first.
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(one));
        assert_eq!(image_of(queue.next(Lane::Index, now)), Some(two));
    }

    #[test]
    fn a_cancelled_job_is_the_next_of_its_kind() {
        let ([one, two, three], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        assert!(matches!(
            queue.next_urgent(Lane::Optimize, now),
            Some(Job::Maintain)
        ));
        queue.pair(one, two);
        queue.give_back(Job::Pair(three, two));
        queue.optimize(one);
        queue.give_back(Job::Optimize(three));
        queue.reorder(one);
        queue.give_back(Job::Reorder(three));
        for expected in 0..3 {
            let job = queue.next(Lane::Optimize, now);
            let found = match job {
                Some(Job::Reorder(it) | Job::Optimize(it) | Job::Pair(it, _)) => it,
                _ => panic!("no job"),
            };
            // A reordering job comes before pairs and optimizations.
            assert_eq!(found, if expected == 1 { one } else { three });
        }
    }
}
