//! Job queue of the background threads: images first, then patches and recompression in turns, and periodic cleanup.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pierhead_host::{BackgroundTask, ClientKey, FairShare, WaiterId};
use pierhead_oci::Digest;

use super::config::Config;
use super::counters::count;
use super::cpu_share::{CpuShare, NAP};
use super::image_job::{AGAIN, image};
use super::{Inner, lock};
use crate::directory::Stage;
use pierhead_toc::Error;

/// How often packs, plans and indexes are looked through.
const TIDY: Duration = Duration::from_secs(300);
/// An image that was interrupted often waits while this many other images are begun. Then it is no longer last.
const MAX_PASSED: u64 = 16;
/// Number of interruptions after which an image waits for all others. The time slice doubles only until then, so the
/// longest is 12 s.
const MAX_YIELDS: u32 = 3;
/// Pairs that wait; what comes beyond them is planned when somebody asks.
const MAX_PAIRS: usize = 1000;

/// What is to be done.
pub(super) struct Queue {
    /// Clients take turns: see [`FairShare`].
    images: FairShare<ClientKey, QueuedImage>,
    /// The queue position of each image, and whether a client waits for it.
    places: HashMap<Digest, (ClientKey, WaiterId, bool)>,
    pairs: VecDeque<(Digest, Digest)>,
    optimize: VecDeque<Digest>,
    order: VecDeque<Digest>,
    /// Whether the last job that could wait was a pair.
    was_pair: bool,
    tidied: Option<Instant>,
    /// Taken, and not done.
    at: usize,
    /// Number of images that were begun.
    started_images: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            // No bound of its own: the number of threads bounds it.
            images: FairShare::new(usize::MAX),
            places: HashMap::new(),
            pairs: VecDeque::new(),
            optimize: VecDeque::new(),
            order: VecDeque::new(),
            was_pair: false,
            tidied: None,
            at: 0,
            started_images: 0,
        }
    }
}

/// An image that waits to be made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuedImage {
    pub(super) manifest: Digest,
    /// The client on whose behalf the image is indexed.
    pub(super) client: ClientKey,
    /// Number of attempts.
    pub(super) tries: u32,
    /// Number of interruptions by another client.
    pub(super) yields: u32,
    /// Earliest start.
    pub(super) at: Option<Instant>,
    /// Whether a client waits for it.
    pub(super) awaited: bool,
    /// CPU time of all earlier attempts. It counts against the budget of the image.
    pub(super) used: Duration,
    /// Number of long attempts, this one included.
    pub(super) long_tries: u32,
    /// Whether this attempt has a longer slice, since the image was last for long enough.
    pub(super) is_long: bool,
    /// Value of `Queue::started_images` from which it is no longer last.
    pub(super) last_until: u64,
}

/// The CPU time before this attempt can be interrupted. It doubles with each of the first interruptions, and later with
/// each long attempt.
fn time_slice(config: &Config, image: &QueuedImage) -> Duration {
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
            awaited: false,
            used: Duration::ZERO,
            long_tries: 0,
            is_long: false,
            last_until: 0,
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.at.is_none_or(|at| at <= now)
    }

    /// Whether it was interrupted so often that it interrupts no other image.
    fn was_interrupted_often(&self) -> bool {
        self.yields >= MAX_YIELDS
    }

    /// Whether it waits for the images of all other clients. `started_images` is the number of images begun so far.
    fn is_last(&self, started_images: u64) -> bool {
        self.was_interrupted_often() && started_images < self.last_until
    }
}

pub(super) enum Job {
    Image(QueuedImage),
    /// From the second to the first.
    Pair(Digest, Digest),
    /// Better frames.
    Optimize(Digest),
    /// Frames in another order.
    Order(Digest),
    Maintain,
    /// Tells a directory that was made anew what the old one knew.
    RebuildDirectory,
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// Images are made ready.
    Images,
    /// All else, at the lowest priority, while no image is being made ready.
    Later,
}

impl Queue {
    /// Jobs that wait, or are being done.
    pub(super) fn len(&self) -> usize {
        let wait =
            self.images.waiting() + self.pairs.len() + self.optimize.len() + self.order.len();
        wait + self.at
    }

    fn is_empty(&self) -> bool {
        self.len() == self.at
    }

    pub(super) fn image(&mut self, manifest: Digest, client: ClientKey) {
        self.push(QueuedImage::new(manifest, client));
    }

    /// Marks an image as awaited by a client: it goes before all images that no client waits for. It moves into the queue
    /// of that client when that queue is shorter.
    pub(super) fn first(&mut self, manifest: &Digest, client: ClientKey) {
        let Some((of, id, awaited)) = self.places.get(manifest).copied() else {
            return;
        };
        let is_shorter = self.images.waiting_of(&client) < self.images.waiting_of(&of);
        // Otherwise it keeps its position, however often clients ask.
        if awaited && !is_shorter {
            return;
        }
        if let Some(mut image) = self.images.cancel(&of, id) {
            (image.client, image.awaited) = (client, true);
            self.wait(image);
        }
    }

    /// Adds an image, unless it waits already.
    pub(super) fn push(&mut self, image: QueuedImage) {
        if !self.places.contains_key(&image.manifest) {
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
            awaited,
            ..
        } = image;
        let id = self.images.wait(&client, image);
        self.places.insert(manifest, (client, id, awaited));
    }

    /// Whether somebody waits for an image that could be begun: then what is before it does not rest.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        let mut waiters = self.images.waiters();
        waiters.any(|(_, it)| it.awaited && it.is_due(now))
    }

    /// Whether a client with fewer threads than `client` waits for an image that is due and may interrupt.
    fn is_wanted_by_other(&self, client: &ClientKey, now: Instant) -> bool {
        let held = self.images.held_by(client);
        let mut waiters = self.images.waiters();
        waiters.any(|(other, it)| {
            let may_interrupt = it.awaited && it.is_due(now) && !it.was_interrupted_often();
            may_interrupt && other != client && self.images.held_by(other) < held
        })
    }

    pub(super) fn pair(&mut self, new: Digest, old: Digest) {
        if self.pairs.len() < MAX_PAIRS && !self.pairs.contains(&(new, old)) {
            self.pairs.push_back((new, old));
        }
    }

    pub(super) fn optimize(&mut self, manifest: Digest) {
        if !self.optimize.contains(&manifest) {
            self.optimize.push_back(manifest);
        }
    }

    pub(super) fn order(&mut self, manifest: Digest) {
        if !self.order.contains(&manifest) {
            self.order.push_back(manifest);
        }
    }

    /// Puts back what gave up to give back what it held: it is the first of its kind once there is room again.
    fn back(&mut self, job: Job) {
        match job {
            Job::Pair(new, old) => self.pairs.push_front((new, old)),
            Job::Optimize(manifest) => self.optimize.push_front(manifest),
            Job::Order(manifest) => self.order.push_front(manifest),
            // Images are put back by whoever holds their rows; the others never give up.
            Job::Image(_) | Job::Maintain | Job::RebuildDirectory => {}
        }
    }

    /// Images that a client waits for come first. Clients take turns. Images that were interrupted often come last, until
    /// [`MAX_PASSED`] other images were begun. Then they have a longer attempt.
    fn take(&mut self, is_awaited: bool, now: Instant) -> Option<Job> {
        let is_next = |image: &QueuedImage| (image.awaited || !is_awaited) && image.is_due(now);
        let started_images = self.started_images;
        let is_other = |image: &QueuedImage| is_next(image) && !image.is_last(started_images);
        let has_other = self.images.waiters().any(|(_, image)| is_other(image));
        let is_next =
            |image: &QueuedImage| is_next(image) && !(has_other && image.is_last(started_images));
        let (_, mut image) = self.images.next(|_, _, image| is_next(image))?;
        self.places.remove(&image.manifest);
        self.started_images += 1;
        image.is_long = image.was_interrupted_often() && !image.is_last(started_images);
        image.long_tries += u32::from(image.is_long);
        Some(Job::Image(image))
    }

    fn maintain(&mut self, now: Instant) -> Option<Job> {
        let is_due = self.tidied.is_none_or(|at| now.duration_since(at) >= TIDY);
        is_due.then(|| {
            self.tidied = Some(now);
            Job::Maintain
        })
    }

    /// What does not rest: an image that somebody waits for, and the tidying, which gives room back.
    fn urgent(&mut self, lane: Lane, now: Instant) -> Option<Job> {
        match lane {
            Lane::Images => self.take(true, now),
            Lane::Later => self.maintain(now),
        }
    }

    fn next(&mut self, lane: Lane, now: Instant) -> Option<Job> {
        if lane == Lane::Images {
            return self.take(true, now).or_else(|| self.take(false, now));
        }
        if self.images.waiters().any(|(_, it)| it.is_due(now)) {
            return None;
        }
        if let Some(maintain) = self.maintain(now) {
            return Some(maintain);
        }
        if let Some(manifest) = self.order.pop_front() {
            return Some(Job::Order(manifest));
        }
        // By turns: neither starves the other.
        if (!self.was_pair || self.optimize.is_empty())
            && let Some((new, old)) = self.pairs.pop_front()
        {
            self.was_pair = true;
            return Some(Job::Pair(new, old));
        }
        self.was_pair = false;
        self.optimize.pop_front().map(Job::Optimize)
    }
}

/// Label of this task in the panic counter.
const TASK: BackgroundTask = BackgroundTask::BundleServer;

/// Starts the threads.
pub(super) fn start(inner: &Arc<Inner>) -> Result<(), Error> {
    for nth in 0..inner.config.workers.max(1) {
        for (lane, name) in [(Lane::Images, "library"), (Lane::Later, "library-later")] {
            let shared = inner.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{nth}"))
                .spawn(move || {
                    let panics = shared.config.background.panics().clone();
                    let pause = |wait: Duration| {
                        std::thread::sleep(wait.min(Duration::from_secs(1)));
                        !shared.stop.load(Ordering::Relaxed)
                    };
                    panics.restart(TASK, || work(&shared, lane), pause);
                });
            let thread = thread.map_err(|error| Error::io("start a thread", error))?;
            lock(&inner.workers).push(thread);
        }
    }
    Ok(())
}

fn work(inner: &Arc<Inner>, lane: Lane) {
    if lane == Lane::Later {
        // Of this thread alone, on Linux.
        let _ = rustix::process::setpriority_process(None, 19);
    }
    while let Some(job) = wait(inner, lane) {
        // Lack of memory also ends a job, and is no interruption by another client.
        let interrupted = Arc::<AtomicBool>::default();
        let share = CpuShare::new(inner.config.cpu_percent, inner.stop.clone());
        let used = Cell::new(Duration::ZERO);
        let rest = inner.config.background.clone();
        let done = catch_unwind(AssertUnwindSafe(|| match &job {
            Job::Image(taken) => {
                let awaited = lock(&inner.images)
                    .get(&taken.manifest)
                    .map(|it| it.awaited.clone());
                let queue = inner.clone();
                let wanted = move || lock(&queue.queue).is_wanted(Instant::now());
                let (queue, client) = (inner.clone(), taken.client);
                let interrupts = interrupted.clone();
                let other = move || {
                    let is_wanted = lock(&queue.queue).is_wanted_by_other(&client, Instant::now());
                    interrupts.fetch_or(is_wanted, Ordering::Relaxed) || is_wanted
                };
                let share = share
                    .resting(rest)
                    .unless(Arc::new(wanted))
                    .yielding(time_slice(&inner.config, taken), Box::new(other))
                    .having_used(taken.used);
                let mut share = share.awaited(awaited.unwrap_or_default());
                let done = image(inner, taken, &mut share);
                used.set(share.used());
                done.and(inner.drop_late())
            }
            Job::Pair(new, old) => {
                inner.prepare(new, old, &mut share.resting(rest).after(inner.busy.clone()))
            }
            Job::Optimize(manifest) => {
                inner.optimize(manifest, &mut share.resting(rest).after(inner.busy.clone()))
            }
            Job::Order(manifest) => {
                inner.order(manifest, &mut share.resting(rest).after(inner.busy.clone()))
            }
            // These do not rest: the one gives room back, and without the other what is packed is packed again.
            Job::Maintain => inner.maintain(&mut { share }),
            Job::RebuildDirectory => inner.tell(&mut { share }),
        }));
        let done = done.inspect_err(|panic| {
            let panics = inner.config.background.panics();
            panics.note(TASK, &**panic);
        });
        let done = done.unwrap_or_else(|_| match &job {
            // Whatever it was about this image, the next one shall not wait for it for ever.
            Job::Image(QueuedImage { manifest, .. }) => {
                tracing::error!(%manifest, "work on an image panicked; it is not bundled");
                let why = "it could not be read, by a fault of pierhead: see its log".to_owned();
                inner.settle(manifest, Some(Stage::Refused(why)))
            }
            _ => {
                tracing::error!("work in the background panicked");
                Ok(())
            }
        });
        inner.meter.report_packed(&inner.packs);
        // It gave up while the machine is short of something: what it held is free, and it comes again.
        let client = match &job {
            Job::Image(taken) => Some(taken.client),
            _ => None,
        };
        if matches!(done, Err(Error::Stopped)) && !inner.stop.load(Ordering::Relaxed) {
            count(&inner.counters.cancelled);
            match job {
                Job::Image(taken) => inner.requeue(QueuedImage {
                    yields: taken.yields + u32::from(interrupted.load(Ordering::Relaxed)),
                    at: None,
                    used: used.get(),
                    ..taken
                }),
                job => lock(&inner.queue).back(job),
            }
        }
        // Under the lock: whoever just saw that it is busy waits by now, and is woken.
        let mut queue = lock(&inner.queue);
        queue.at -= 1;
        if let Some(client) = client {
            queue.images.release(&client);
        }
        if lane == Lane::Images {
            inner.busy.fetch_sub(1, Ordering::Relaxed);
            inner.wake.notify_all();
        }
        drop(queue);
        match done {
            Ok(()) | Err(Error::Stopped) => {}
            Err(error) => {
                count(&inner.counters.failed);
                tracing::warn!(%error, "work in the background failed");
            }
        }
    }
}

fn wait(inner: &Inner, lane: Lane) -> Option<Job> {
    let mut queue = lock(&inner.queue);
    loop {
        if inner.stop.load(Ordering::Relaxed) {
            return None;
        }
        let is_later = lane == Lane::Later && inner.busy.load(Ordering::Relaxed) > 0;
        // Nothing else goes on with it: the lane of images packs again what it does not find.
        if lane == Lane::Later && inner.directory.take_lost() {
            return Some(Job::RebuildDirectory);
        }
        let rests = inner.config.background.is_paused();
        let is_worn = !queue.is_empty() && !inner.meter.may_write(false);
        let job = match rests || is_worn {
            // The tidying writes next to nothing.
            true if is_worn && lane == Lane::Images && !inner.meter.may_write(true) => None,
            true => queue.urgent(lane, Instant::now()),
            false if is_later => None,
            false => queue.next(lane, Instant::now()),
        };
        if rests && job.is_none() {
            drop(queue);
            inner.config.background.wait_while_paused(NAP);
            queue = lock(&inner.queue);
            continue;
        }
        if let Some(job) = job {
            queue.at += 1;
            if lane == Lane::Images {
                inner.busy.fetch_add(1, Ordering::Relaxed);
            }
            return Some(job);
        }
        let waited = inner.wake.wait_timeout(queue, AGAIN);
        queue = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(queue, _)| queue);
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
            Some(Job::Image(taken)) => Some(taken.manifest),
            _ => None,
        }
    }

    #[test]
    fn only_what_is_awaited_and_due_is_urgent() {
        let ([one, two, three], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        queue.image(one, client(1));
        queue.image(two, client(1));
        assert!(!queue.is_wanted(now));
        assert!(image_of(queue.urgent(Lane::Images, now)).is_none());
        queue.first(&two, client(1));
        assert!(queue.is_wanted(now));
        assert_eq!(image_of(queue.urgent(Lane::Images, now)), Some(two));
        // It failed, and waits to be tried again: what is before it may rest until then.
        let later = now + AGAIN;
        queue.push(QueuedImage {
            at: Some(later),
            awaited: true,
            ..QueuedImage::new(two, client(1))
        });
        queue.image(three, client(1));
        assert!(!queue.is_wanted(now) && queue.is_wanted(later));
        assert!(image_of(queue.urgent(Lane::Images, now)).is_none());
        assert_eq!(image_of(queue.next(Lane::Images, later)), Some(two));
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(one));
    }

    #[test]
    fn a_client_that_wants_a_hundred_images_delays_another_one_by_one() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for nth in 0..100_u32 {
            let manifest = pierhead_toc::FileDigest::of(&nth.to_le_bytes()).into();
            queue.image(manifest, client(1));
            queue.first(&manifest, client(1));
        }
        let [wanted, ..] = digests();
        assert!(image_of(queue.next(Lane::Images, now)).is_some());
        assert!(!queue.is_wanted_by_other(&client(1), now));
        // The first client also asks for the other client's image: it does not move behind the hundred.
        queue.image(wanted, client(1));
        queue.first(&wanted, client(1));
        queue.first(&wanted, client(2));
        queue.first(&wanted, client(1));
        assert!(queue.is_wanted_by_other(&client(1), now));
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(wanted));
        // Each client holds one thread, so neither is interrupted.
        assert!(!queue.is_wanted_by_other(&client(1), now));
    }

    #[test]
    fn an_image_that_was_interrupted_often_waits_for_the_images_of_others() {
        let ([heavy, rival, small], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        let awaited = |manifest, of, yields| QueuedImage {
            awaited: true,
            yields,
            ..QueuedImage::new(manifest, client(of))
        };
        queue.push(awaited(heavy, 1, MAX_YIELDS));
        queue.push(awaited(rival, 2, MAX_YIELDS));
        for nth in 10..20_u8 {
            // The heavy images have waited for longer.
            let manifest = pierhead_toc::FileDigest::of(&[nth]).into();
            queue.push(awaited(manifest, nth, MAX_YIELDS - 1));
            assert_eq!(image_of(queue.next(Lane::Images, now)), Some(manifest));
            queue.images.release(&client(nth));
        }
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(heavy));
        // The other heavy image does not interrupt it, so both end. A small one does.
        assert!(!queue.is_wanted_by_other(&client(1), now));
        queue.push(awaited(small, 3, 0));
        assert!(queue.is_wanted_by_other(&client(1), now));
        queue.images.release(&client(1));
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(small));
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(rival));
    }

    #[test]
    fn an_image_that_was_last_for_long_has_a_longer_attempt() {
        let (now, config) = (Instant::now(), Config::new("", 0, 0));
        let [heavy, ..] = digests();
        let mut queue = Queue::default();
        let mut taken = QueuedImage {
            awaited: true,
            yields: MAX_YIELDS,
            ..QueuedImage::new(heavy, client(1))
        };
        let mut small = 0_u32;
        for seconds in [24, 48] {
            queue.push(taken.clone());
            // Other clients never stop to ask for small images.
            let mut passed = 0;
            taken = loop {
                small += 1;
                let manifest = pierhead_toc::FileDigest::of(&small.to_le_bytes()).into();
                queue.push(QueuedImage {
                    awaited: true,
                    ..QueuedImage::new(manifest, client(2))
                });
                match queue.next(Lane::Images, now) {
                    Some(Job::Image(image)) if image.manifest == heavy => break image,
                    Some(Job::Image(image)) => queue.images.release(&image.client),
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
    fn what_somebody_waits_for_comes_before_all_that_nobody_does() {
        let ([one, two, three], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        queue.image(one, client(2));
        queue.image(two, client(1));
        queue.image(three, client(1));
        queue.first(&three, client(1));
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(three));
        // The other client holds no thread.
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(one));
        assert_eq!(image_of(queue.next(Lane::Images, now)), Some(two));
    }

    #[test]
    fn what_gave_up_is_the_next_of_its_kind() {
        let ([one, two, three], now) = (digests(), Instant::now());
        let mut queue = Queue::default();
        assert!(matches!(
            queue.urgent(Lane::Later, now),
            Some(Job::Maintain)
        ));
        queue.pair(one, two);
        queue.back(Job::Pair(three, two));
        queue.optimize(one);
        queue.back(Job::Optimize(three));
        queue.order(one);
        queue.back(Job::Order(three));
        for expected in 0..3 {
            let job = queue.next(Lane::Later, now);
            let found = match job {
                Some(Job::Order(it) | Job::Optimize(it) | Job::Pair(it, _)) => it,
                _ => panic!("nothing"),
            };
            // Both orders come before what can wait longer.
            assert_eq!(found, if expected == 1 { one } else { three });
        }
    }
}
