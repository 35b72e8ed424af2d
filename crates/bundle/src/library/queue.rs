//! Who does what when: images first, then by turns pairs of them and better frames, and now and then the tidying.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::figures::count;
use super::pace::{NAP, Share};
use super::{Inner, lock};
use crate::api::{Progress, Stage as At};
use crate::directory::Stage;
use crate::{Error, Fault};

/// How often packs, plans and indexes are looked through.
const TIDY: Duration = Duration::from_secs(300);
/// How often an image is tried again that this machine's trouble has stopped, and how long it waits.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_secs(30);
/// Pairs that wait; what comes beyond them is planned when somebody asks.
const MAX_PAIRS: usize = 1000;

/// What is to be done.
#[derive(Default)]
pub(super) struct Queue {
    images: VecDeque<(Digest, u32, Option<Instant>)>,
    known: HashSet<Digest>,
    pairs: VecDeque<(Digest, Digest)>,
    improve: VecDeque<Digest>,
    order: VecDeque<Digest>,
    /// Whether the last job that could wait was a pair.
    was_pair: bool,
    tidied: Option<Instant>,
    /// Taken, and not done.
    at: usize,
}

pub(super) enum Job {
    Image(Digest, u32),
    /// From the second to the first.
    Pair(Digest, Digest),
    /// Better frames.
    Improve(Digest),
    /// Frames in another order.
    Order(Digest),
    Tidy,
    /// Tells a directory that was made anew what the old one knew.
    Tell,
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
        let wait = self.images.len() + self.pairs.len() + self.improve.len() + self.order.len();
        wait + self.at
    }

    pub(super) fn image(&mut self, manifest: Digest) {
        if self.known.insert(manifest) {
            self.images.push_back((manifest, 0, None));
        }
    }

    /// Somebody waits for this one.
    pub(super) fn first(&mut self, manifest: &Digest) {
        let at = self.images.iter().position(|(of, ..)| of == manifest);
        if let Some(image) = at.and_then(|at| self.images.remove(at)) {
            self.images.push_front(image);
        }
    }

    fn again(&mut self, manifest: Digest, tries: u32, at: Option<Instant>) {
        if self.known.insert(manifest) {
            self.images.push_back((manifest, tries, at));
        }
    }

    pub(super) fn pair(&mut self, new: Digest, old: Digest) {
        if self.pairs.len() < MAX_PAIRS && !self.pairs.contains(&(new, old)) {
            self.pairs.push_back((new, old));
        }
    }

    pub(super) fn improve(&mut self, manifest: Digest) {
        if !self.improve.contains(&manifest) {
            self.improve.push_back(manifest);
        }
    }

    pub(super) fn order(&mut self, manifest: Digest) {
        if !self.order.contains(&manifest) {
            self.order.push_back(manifest);
        }
    }

    fn next(&mut self, lane: Lane, now: Instant) -> Option<Job> {
        let due = |(_, _, at): &(Digest, u32, Option<Instant>)| at.is_none_or(|at| at <= now);
        let at = self.images.iter().position(due);
        if lane == Lane::Images {
            let (manifest, tries, _) = self.images.remove(at?)?;
            self.known.remove(&manifest);
            return Some(Job::Image(manifest, tries));
        }
        if at.is_some() {
            return None;
        }
        if self.tidied.is_none_or(|at| now.duration_since(at) >= TIDY) {
            self.tidied = Some(now);
            return Some(Job::Tidy);
        }
        if let Some(manifest) = self.order.pop_front() {
            return Some(Job::Order(manifest));
        }
        // By turns: neither starves the other.
        if (!self.was_pair || self.improve.is_empty())
            && let Some((new, old)) = self.pairs.pop_front()
        {
            self.was_pair = true;
            return Some(Job::Pair(new, old));
        }
        self.was_pair = false;
        self.improve.pop_front().map(Job::Improve)
    }
}

/// Starts the threads.
pub(super) fn start(inner: &Arc<Inner>) -> Result<(), Error> {
    for nth in 0..inner.config.workers.max(1) {
        for (lane, name) in [(Lane::Images, "library"), (Lane::Later, "library-later")] {
            let shared = inner.clone();
            let thread = std::thread::Builder::new()
                .name(format!("{name}-{nth}"))
                .spawn(move || work(&shared, lane));
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
        let share = Share::new(inner.config.share, inner.stop.clone());
        let wanted = match lane {
            Lane::Images => inner.wanted.clone(),
            Lane::Later => Arc::<AtomicBool>::default(),
        };
        let share = share.resting(inner.config.rest.clone(), wanted);
        let done = catch_unwind(AssertUnwindSafe(|| match &job {
            Job::Image(manifest, tries) => {
                let awaited = lock(&inner.images)
                    .get(manifest)
                    .map(|it| it.awaited.clone());
                let mut share = share.awaited(awaited.unwrap_or_default());
                image(inner, manifest, *tries, &mut share)
            }
            Job::Pair(new, old) => inner.prepare(new, old, &mut share.after(inner.busy.clone())),
            Job::Improve(manifest) => inner.improve(manifest, &mut share.after(inner.busy.clone())),
            Job::Order(manifest) => inner.order(manifest),
            Job::Tidy => inner.tidy(),
            Job::Tell => inner.tell(),
        }));
        let done = done.unwrap_or_else(|_| match &job {
            // Whatever it was about this image, the next one shall not wait for it for ever.
            Job::Image(manifest, _) => {
                tracing::error!(%manifest, "work on an image panicked; it is not bundled");
                let why = "it could not be read, by a fault of pierhead: see its log".to_owned();
                inner.settle(manifest, Some(Stage::Refused(why)))
            }
            _ => {
                tracing::error!("work in the background panicked");
                Ok(())
            }
        });
        if lane == Lane::Images {
            inner.look_for_wanted();
        }
        // Under the lock: whoever just saw that it is busy waits by now, and is woken.
        let mut queue = lock(&inner.queue);
        queue.at -= 1;
        if lane == Lane::Images {
            inner.busy.fetch_sub(1, Ordering::Relaxed);
            inner.wake.notify_all();
        }
        drop(queue);
        match done {
            Ok(()) | Err(Error::Stopped) => {}
            Err(error) => {
                count(&inner.figures.failed);
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
            return Some(Job::Tell);
        }
        let is_wanted = lane == Lane::Images && inner.wanted.load(Ordering::Relaxed);
        if inner.config.rest.is_due() && !is_wanted {
            drop(queue);
            inner.config.rest.nap(NAP);
            queue = lock(&inner.queue);
            continue;
        }
        if !is_later && let Some(job) = queue.next(lane, Instant::now()) {
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

/// Does all there is to do for an image, and notes what came of it.
fn image(
    inner: &Arc<Inner>,
    manifest: &Digest,
    tries: u32,
    share: &mut Share,
) -> Result<(), Error> {
    let _packing = inner.packing.read().unwrap_or_else(PoisonError::into_inner);
    inner.note(manifest)?;
    let done = inner.image(manifest, share);
    let stage = match &done {
        Ok(quick) if quick.is_empty() => Some(Stage::Ready),
        Ok(quick) => Some(Stage::Quick(quick.clone())),
        Err(Error::Stopped) => return done.map(drop),
        // Nothing but a file of ours has a format that an image cannot get wrong. Once is enough, should it do so.
        Err(error) if error.is_damage() && tries == 0 => {
            tracing::warn!(%manifest, %error, "what was made of an image is damaged; it is made anew");
            inner.discard(manifest);
            lock(&inner.queue).again(*manifest, 1, None);
            inner.progress(manifest, At::Wait, 0, 0);
            count(&inner.figures.failed);
            return Ok(());
        }
        Err(error) if error.fault() == Fault::Theirs => {
            count(&inner.figures.refused);
            tracing::warn!(%manifest, %error, "an image cannot be bundled");
            Some(Stage::Refused(error.to_string()))
        }
        // Evicted meanwhile: whoever asks has it pulled again.
        Err(Error::Missing(_)) => None,
        Err(error) if tries < TRIES => {
            tracing::warn!(%manifest, %error, "an image could not be indexed, and will be tried again");
            let at = Instant::now() + AGAIN;
            lock(&inner.queue).again(*manifest, tries + 1, Some(at));
            inner.progress(manifest, At::Wait, 0, 0);
            count(&inner.figures.failed);
            return Ok(());
        }
        Err(_) => None,
    };
    let is_ready = stage.as_ref().is_some_and(Stage::is_ready);
    let is_quick = matches!(stage, Some(Stage::Quick(_)));
    inner.settle(manifest, stage)?;
    if is_ready {
        inner.queue_pairs(manifest);
        if is_quick {
            lock(&inner.queue).improve(*manifest);
        }
        return Ok(());
    }
    match done {
        Err(error) if error.fault() == Fault::Ours => Err(error),
        _ => Ok(()),
    }
}

impl Inner {
    /// How far an image is, for those who ask.
    pub(super) fn progress(&self, manifest: &Digest, stage: At, done: u64, total: u64) {
        if let Some(row) = lock(&self.images).get_mut(manifest) {
            row.progress = Some(Progress { stage, done, total });
        }
    }

    /// Whether somebody still waits for an image. One who asks meanwhile and is overlooked asks again.
    fn look_for_wanted(&self) {
        let is_wanted = |row: &super::Row| {
            row.awaited.load(Ordering::Relaxed) && row.row.stage == Stage::Waiting
        };
        let wanted = lock(&self.images).values().any(is_wanted);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Writes down that an image waits, so that a crash does not forget it.
    fn note(&self, manifest: &Digest) -> Result<(), Error> {
        let row = lock(&self.images).get(manifest).map(|row| row.row.clone());
        match row {
            Some(row) => self.directory.put_image(manifest, Some(&row)),
            None => Ok(()),
        }
    }

    /// Notes what came of an image; `None` forgets it.
    pub(super) fn settle(&self, manifest: &Digest, stage: Option<Stage>) -> Result<(), Error> {
        let row = {
            let mut images = lock(&self.images);
            match (stage, images.get_mut(manifest)) {
                (Some(stage), Some(row)) => {
                    row.row.stage = stage;
                    row.progress = None;
                    Some(row.row.clone())
                }
                _ => {
                    images.remove(manifest);
                    None
                }
            }
        };
        // Why an image is refused may be mended by a restart: another size, another version.
        let lasts = row
            .as_ref()
            .filter(|row| !matches!(row.stage, Stage::Refused(_)));
        self.directory.put_image(manifest, lasts)?;
        self.directory.flush()
    }

    /// Images, and where contents are packed.
    fn tell(&self) -> Result<(), Error> {
        let rows: Vec<_> = lock(&self.images)
            .iter()
            .filter(|(_, row)| !matches!(row.row.stage, Stage::Refused(_)))
            .map(|(manifest, row)| (*manifest, row.row.clone()))
            .collect();
        for (manifest, row) in rows {
            self.directory.put_image(&manifest, Some(&row))?;
        }
        super::places(&self.packs, &self.directory)?;
        self.directory.flush()
    }

    /// Has patches made from the versions of its repository that came last.
    fn queue_pairs(&self, manifest: &Digest) {
        let mut older = Vec::new();
        {
            let images = lock(&self.images);
            let Some(new) = images.get(manifest) else {
                return;
            };
            for (digest, row) in &*images {
                let is_older = row.row.repository == new.row.repository
                    && row.row.stage.is_ready()
                    && row.row.came < new.row.came;
                if is_older {
                    older.push((row.row.came, *digest));
                }
            }
        }
        older.sort();
        let mut queue = lock(&self.queue);
        for (_, old) in older.into_iter().rev().take(self.config.pairs) {
            queue.pair(*manifest, old);
        }
    }
}
