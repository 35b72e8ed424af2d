//! Who does what when: images first, then pairs of them, and now and then the tidying.

use std::collections::{HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::figures::count;
use super::pace::Share;
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
    tidied: Option<Instant>,
}

pub(super) enum Job {
    Image(Digest, u32),
    /// From the second to the first.
    Pair(Digest, Digest),
    Tidy,
}

impl Queue {
    pub(super) fn image(&mut self, manifest: Digest) {
        if self.known.insert(manifest) {
            self.images.push_back((manifest, 0, None));
        }
    }

    fn again(&mut self, manifest: Digest, tries: u32) {
        if self.known.insert(manifest) {
            let at = Instant::now() + AGAIN;
            self.images.push_back((manifest, tries, Some(at)));
        }
    }

    pub(super) fn pair(&mut self, new: Digest, old: Digest) {
        if self.pairs.len() < MAX_PAIRS && !self.pairs.contains(&(new, old)) {
            self.pairs.push_back((new, old));
        }
    }

    fn next(&mut self, now: Instant) -> Option<Job> {
        let due = |(_, _, at): &(Digest, u32, Option<Instant>)| at.is_none_or(|at| at <= now);
        if let Some(at) = self.images.iter().position(due)
            && let Some((manifest, tries, _)) = self.images.remove(at)
        {
            self.known.remove(&manifest);
            return Some(Job::Image(manifest, tries));
        }
        if self.tidied.is_none_or(|at| now.duration_since(at) >= TIDY) {
            self.tidied = Some(now);
            return Some(Job::Tidy);
        }
        let (new, old) = self.pairs.pop_front()?;
        Some(Job::Pair(new, old))
    }
}

/// Starts the threads.
pub(super) fn start(inner: &Arc<Inner>) -> Result<(), Error> {
    for nth in 0..inner.config.workers.max(1) {
        let shared = inner.clone();
        let thread = std::thread::Builder::new()
            .name(format!("library-{nth}"))
            .spawn(move || work(&shared));
        let thread = thread.map_err(|error| Error::io("start a thread", error))?;
        lock(&inner.workers).push(thread);
    }
    Ok(())
}

fn work(inner: &Arc<Inner>) {
    // Of this thread alone, on Linux.
    let _ = rustix::process::setpriority_process(None, 19);
    let mut share = Share::new(inner.config.share, inner.stop.clone());
    while let Some(job) = wait(inner) {
        let done = catch_unwind(AssertUnwindSafe(|| match &job {
            Job::Image(manifest, tries) => image(inner, manifest, *tries, &mut share),
            Job::Pair(new, old) => inner.prepare(new, old, &mut share),
            Job::Tidy => inner.tidy(),
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
        match done {
            Ok(()) | Err(Error::Stopped) => {}
            Err(error) => {
                count(&inner.figures.failed);
                tracing::warn!(%error, "work in the background failed");
            }
        }
    }
}

fn wait(inner: &Inner) -> Option<Job> {
    let mut queue = lock(&inner.queue);
    loop {
        if inner.stop.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(job) = queue.next(Instant::now()) {
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
    inner.note(manifest)?;
    let done = inner.image(manifest, share);
    let stage = match &done {
        Ok(()) => Some(Stage::Ready),
        Err(Error::Stopped) => return done,
        Err(error) if error.fault() == Fault::Theirs => {
            count(&inner.figures.refused);
            tracing::warn!(%manifest, %error, "an image cannot be bundled");
            Some(Stage::Refused(error.to_string()))
        }
        // Evicted meanwhile: whoever asks has it pulled again.
        Err(Error::Missing(_)) => None,
        Err(error) if tries < TRIES => {
            tracing::warn!(%manifest, %error, "an image could not be indexed, and will be tried again");
            lock(&inner.queue).again(*manifest, tries + 1);
            inner.progress(manifest, At::Wait, 0, 0);
            count(&inner.figures.failed);
            return Ok(());
        }
        Err(_) => None,
    };
    let is_ready = stage == Some(Stage::Ready);
    inner.settle(manifest, stage)?;
    if is_ready {
        inner.queue_pairs(manifest);
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
                    && row.row.stage == Stage::Ready
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
