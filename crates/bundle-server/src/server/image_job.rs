//! What comes of an image once it was worked on, and who is told.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use pierhead_oci::Digest;

use super::counters::count;
use super::cpu_share::CpuShare;
use super::job_queue::QueuedImage;
use super::{Inner, lock};
use crate::directory::Stage;
use pierhead_bundle::api::{Progress, Stage as At};
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{Error, Fault};

/// How often an image is tried again that this machine's trouble has stopped, and how long it waits.
const TRIES: u32 = 5;
pub(super) const AGAIN: Duration = Duration::from_secs(30);

/// Does all there is to do for an image, and notes what came of it.
pub(super) fn image(
    inner: &Arc<Inner>,
    taken: &QueuedImage,
    share: &mut CpuShare,
) -> Result<(), Error> {
    let (manifest, tries) = (&taken.manifest, taken.tries);
    let again = |tries, at| {
        inner.requeue(QueuedImage {
            tries,
            at,
            ..taken.clone()
        });
    };
    let _packing = inner.packing.read().unwrap_or_else(PoisonError::into_inner);
    inner.indexing_runs.fetch_add(1, Ordering::Relaxed);
    inner.note(manifest)?;
    let started = Instant::now();
    let done = inner.image(manifest, share);
    let stage = match &done {
        Ok(fast) if fast.is_empty() => Some(Stage::Ready),
        Ok(fast) => Some(Stage::Fast(fast.clone())),
        Err(Error::Stopped) => return done.map(drop),
        // Nothing but a file of ours has a format that an image cannot get wrong. Once is enough, should it do so.
        Err(error) if error.is_damage() && tries == 0 => {
            tracing::warn!(%manifest, %error, "what was made of an image is damaged; it is made anew");
            inner.discard(manifest);
            again(1, None);
            count(&inner.counters.failed);
            return Ok(());
        }
        Err(error) if error.fault() == Fault::Theirs => {
            count(&inner.counters.refused);
            // The operator can do nothing about it, and each start meets it again.
            tracing::info!(%manifest, %error, "an image cannot be bundled");
            Some(Stage::Refused(error.to_string()))
        }
        // Evicted meanwhile: whoever asks has it pulled again.
        Err(Error::Missing(_)) => None,
        Err(error) if tries < TRIES => {
            tracing::warn!(%manifest, %error, "an image could not be indexed, and will be tried again");
            let at = Instant::now() + AGAIN;
            again(tries + 1, Some(at));
            count(&inner.counters.failed);
            return Ok(());
        }
        Err(_) => None,
    };
    let is_ready = stage.as_ref().is_some_and(Stage::is_ready);
    let is_fast = matches!(stage, Some(Stage::Fast(_)));
    inner.settle(manifest, stage)?;
    if is_ready {
        inner.log_ready(manifest, started);
        inner.queue_pairs(manifest);
        if is_fast {
            lock(&inner.queue).optimize(*manifest);
        }
        return Ok(());
    }
    match done {
        Err(error) if error.fault() == Fault::Ours => Err(error),
        _ => Ok(()),
    }
}

impl Inner {
    /// The line of an image that bundles can be made of from now on.
    fn log_ready(&self, manifest: &Digest, started: Instant) {
        // The lock is free by now: requests need it, and a write to the log can block.
        let image = lock(&self.images)
            .get(manifest)
            .map(|row| row.row.repository.clone());
        let image = image.as_ref().map(tracing::field::display);
        let seconds = (started.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        tracing::info!(image, %manifest, seconds, "image ready for bundles");
    }

    /// How far an image is, for those who ask.
    pub(super) fn progress(&self, manifest: &Digest, stage: At, done: u64, total: u64) {
        if let Some(row) = lock(&self.images).get_mut(manifest) {
            row.progress = Some(Progress { stage, done, total });
        }
    }

    /// Puts an image back among those that wait. Under the lock of the images: whoever begins to wait for it finds it here, or is
    /// seen here.
    pub(super) fn requeue(&self, image: QueuedImage) {
        let manifest = image.manifest;
        let images = lock(&self.images);
        let awaited = images
            .get(&manifest)
            .is_some_and(|row| row.awaited.load(Ordering::Relaxed));
        lock(&self.queue).push(QueuedImage { awaited, ..image });
        drop(images);
        self.progress(&manifest, At::Wait, 0, 0);
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
    pub(super) fn tell(&self, share: &mut CpuShare) -> Result<(), Error> {
        let rows: Vec<_> = lock(&self.images)
            .iter()
            .filter(|(_, row)| !matches!(row.row.stage, Stage::Refused(_)))
            .map(|(manifest, row)| (*manifest, row.row.clone()))
            .collect();
        for (manifest, row) in rows {
            self.directory.put_image(&manifest, Some(&row))?;
            share.pause(0)?;
        }
        super::places(&self.packs, &self.directory, &mut || share.pause(0))?;
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
        for (_, old) in older.into_iter().rev().take(self.config.max_pairs) {
            queue.pair(*manifest, old);
        }
    }
}
