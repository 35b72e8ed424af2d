//! The writing side of a fill.

pub(crate) mod blob_reader;
mod ingest;
mod reservation;
pub(crate) mod shared_fill;

use std::sync::Arc;

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Digest, MediaType};

use crate::blob::StoredBlob;
use crate::blocking::blocking;
use crate::error::Error;
use crate::fill::blob_reader::Readers;
use crate::fill::blob_reader::TailReader;
use crate::fill::ingest::Ingest;
use crate::fill::shared_fill::{Order, SharedFill, Terms};
use crate::store::Store;
use crate::store::small_blobs::SMALL;

/// Held by the one leader. Dropping it without [`Fill::finish`] ends the fill for its followers with
/// [`Error::Abandoned`]; the bytes stay staged, and the next leader resumes behind them.
///
/// The course of a fill: fetch from [`Fill::offset`]; [`Fill::restart`] if the upstream starts at 0
/// instead; [`Fill::begin`]; [`Fill::write`] each piece; [`Fill::finish`].
///
/// When the disk cannot take it ([`Error::is_storage`], from `begin`, `write` or `finish`), all readers
/// get that error too: each of them goes on by streaming from the upstream, from the offset that it has
/// reached, and stores nothing. After [`Error::WrongDigest`] with `resumed`, one more claim, which then
/// starts from zero, may succeed: readers that have sent nothing yet make it, others cut their body.
pub struct Fill {
    store: Arc<Store>,
    shared_fill: Arc<SharedFill>,
    media_type: Option<MediaType>,
    offset: u64,
    position: u64,
    size: Option<u64>,
    terms: Terms,
    over: bool,
}

impl Fill {
    /// Opens the staged file of a newly registered flight. A panic ends that flight, like an error. Blocks.
    pub(crate) fn lead(store: Arc<Store>, shared_fill: &Arc<SharedFill>) -> Result<Self, Error> {
        let panics = store.config.rest.panics();
        let led = panics.catch(BackgroundTask::CacheFill, || {
            Self::open(&store, shared_fill)
        });
        led.unwrap_or_else(|| {
            let error = Error::Abandoned("opening its staging panicked".into());
            shared_fill.close();
            store.end_fill(shared_fill, None);
            shared_fill
                .progress
                .send_modify(|progress| progress.outcome = Some(Err(error.clone())));
            Err(error)
        })
    }

    fn open(store: &Arc<Store>, shared_fill: &Arc<SharedFill>) -> Result<Self, Error> {
        match store.stage(&shared_fill.digest, shared_fill.origin) {
            Ok((staged, reserved)) => {
                shared_fill.set_staged(&*staged, reserved);
                let fill = Self::new(store.clone(), shared_fill.clone(), staged.size());
                let ingest = Ingest::new(store.clone(), shared_fill, staged);
                shared_fill.start(Box::new(ingest));
                Ok(fill)
            }
            Err(error) => {
                shared_fill.close();
                shared_fill
                    .progress
                    .send_modify(|progress| progress.outcome = Some(Err(error.clone())));
                Err(error)
            }
        }
    }

    /// `offset`: bytes staged.
    fn new(store: Arc<Store>, shared_fill: Arc<SharedFill>, offset: u64) -> Self {
        Self {
            store,
            shared_fill,
            media_type: None,
            offset,
            position: offset,
            size: None,
            terms: Terms::default(),
            over: false,
        }
    }

    /// A reader of this fill.
    pub(crate) fn tail(&self) -> TailReader {
        TailReader::new(self.shared_fill.clone())
    }

    /// The readers of this fill.
    pub fn readers(&self) -> Readers {
        Readers::of(&self.shared_fill)
    }

    pub(crate) fn set_media_type(&mut self, media_type: MediaType) {
        self.media_type = Some(media_type);
    }

    /// Says how many seconds a client would wait for this if it were not there: what its rank goes by. Before
    /// [`Fill::begin`]; without it, what a distant registry takes.
    pub fn set_cost(&mut self, seconds: f32) {
        self.terms.cost = Some(seconds).filter(|it| it.is_finite() && *it >= 0.0);
    }

    /// Somebody wants it kept: the admission is not asked. Before [`Fill::begin`].
    pub fn insist(&mut self) {
        self.terms.always = true;
    }

    /// Which blob.
    pub fn digest(&self) -> Digest {
        self.shared_fill.digest
    }

    /// Bytes that are staged already (from a fill that was cut short, maybe before a restart): fetch from
    /// here. A multiple of 64 KiB, and less than the size of the content if what is staged is any of it.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Says how long the whole content is, before the first write. Room is set aside in steps as bytes come,
    /// evicting for them; a length that could never fit is refused here. So is what the admission had rather not
    /// keep; those who have joined by now count as so many requests, and one of them may tip the scale. Readers
    /// see nothing before this.
    ///
    /// # Errors
    /// [`Error::NoRoom`], [`Error::TooLarge`], [`Error::NotAdmitted`], and the fill is over: its readers are told
    /// to stream directly.
    /// [`Error::WrongSize`] when more than that is staged.
    pub async fn begin(&mut self, size: Option<u64>) -> Result<(), Error> {
        if let Some(expected) = size
            && expected < self.position
        {
            let error = Error::WrongSize {
                digest: self.digest(),
                expected,
                actual: self.position,
            };
            return Err(self.fail(error).await);
        }
        let (store, shared_fill) = (self.store.clone(), self.shared_fill.clone());
        let need = Store::need(size.unwrap_or(self.position), self.media_type.as_ref());
        let mut terms = self.terms;
        terms.small = self.media_type.is_some() || size.is_some_and(|size| size <= SMALL);
        let reserved =
            blocking(move || reservation::announce(&store, &shared_fill, size, need, terms)).await;
        if let Err(error) = reserved {
            // Refused today: what was staged before may be gone on with another time.
            let keep = matches!(error, Error::NotAdmitted { .. }) && self.position > 0;
            return Err(self.end(error, keep).await);
        }
        self.size = size;
        self.shared_fill
            .progress
            .send_modify(|progress| progress.size = Some(size));
        Ok(())
    }

    /// Forgets what is staged: the upstream cannot resume. [`Fill::begin`] comes next. Readers that have
    /// read some of it get [`Error::Restarted`], since the new bytes may be others.
    ///
    /// # Errors
    /// [`Error::Io`], and the fill is over.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let mut progress = self.shared_fill.progress.subscribe();
        let before = progress.borrow().generation;
        self.shared_fill.order(Order::Clear);
        let cleared = progress
            .wait_for(|progress| progress.generation > before || progress.outcome.is_some())
            .await;
        if !cleared.is_ok_and(|progress| progress.outcome.is_none()) {
            return Err(self.shared_fill.failure().await);
        }
        (self.offset, self.position, self.size) = (0, 0, None);
        Ok(())
    }

    /// The next bytes. Returns when they are accepted (at most 1 MiB is in flight to the disk). Cancel
    /// safe: a cancelled write has written nothing.
    ///
    /// # Errors
    /// [`Error::WrongSize`] when there are more than announced; [`Error::Io`], [`Error::NoRoom`],
    /// [`Error::TooLarge`]. The fill is over then.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        let actual = self.position + bytes.len() as u64;
        if let Some(expected) = self.size
            && actual > expected
        {
            let error = Error::WrongSize {
                digest: self.digest(),
                expected,
                actual,
            };
            return Err(self.fail(error).await);
        }
        self.shared_fill.push(bytes).await?;
        self.position = actual;
        Ok(())
    }

    /// Checks length and digest, releases the last piece to the readers, commits durably. Cancelling it
    /// does not stop the commit.
    ///
    /// # Errors
    /// [`Error::WrongDigest`], [`Error::WrongSize`]: staged bytes are deleted, readers are cut.
    /// [`Error::Io`]: the content was right, readers have all of it, but it is not stored.
    pub async fn finish(mut self) -> Result<StoredBlob, Error> {
        if let Some(expected) = self.size
            && self.position != expected
        {
            let error = Error::WrongSize {
                digest: self.digest(),
                expected,
                actual: self.position,
            };
            return Err(self.fail(error).await);
        }
        self.over = true;
        self.shared_fill
            .order(Order::Finish(self.media_type.take()));
        Ok(StoredBlob::new(self.shared_fill.outcome().await?))
    }

    /// Gives up, telling the readers why. What is staged stays for the next leader.
    pub fn abandon(mut self, why: &str) {
        self.over = true;
        self.shared_fill.order(Order::Abandon {
            why: Error::Abandoned(why.into()),
            keep: true,
        });
    }

    /// Ends the fill and deletes what is staged.
    async fn fail(&mut self, why: Error) -> Error {
        self.end(why, false).await
    }

    async fn end(&mut self, why: Error, keep: bool) -> Error {
        self.over = true;
        self.shared_fill.order(Order::Abandon { why, keep });
        self.shared_fill.failure().await
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.over {
            let why = Error::Abandoned("the fetch was given up".into());
            self.shared_fill.order(Order::Abandon { why, keep: true });
        }
    }
}
