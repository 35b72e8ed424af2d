//! The writing side of a fill.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_host::BackgroundTask;
use pierhead_oci::{Digest, MediaType};

use crate::flight::{Flight, Order, Terms};
use crate::ingest::{Ingest, end};
use crate::memory::SMALL;
use crate::store::{Store, blocking};
use crate::{Error, Object, Readers, Tail};

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
    flight: Arc<Flight>,
    media_type: Option<MediaType>,
    offset: u64,
    position: u64,
    size: Option<u64>,
    terms: Terms,
    over: bool,
}

impl Fill {
    /// Opens the staged file of a newly registered flight. A panic ends that flight, like an error. Blocks.
    pub(crate) fn lead(flight: &Arc<Flight>) -> Result<Self, Error> {
        let panics = flight.store.config.rest.panics();
        let led = panics.catch(BackgroundTask::CacheFill, || Self::open(flight));
        led.unwrap_or_else(|| {
            let error = Error::Abandoned("opening its staging panicked".into());
            flight.close();
            end(flight, None);
            flight
                .progress
                .send_modify(|progress| progress.outcome = Some(Err(error.clone())));
            Err(error)
        })
    }

    fn open(flight: &Arc<Flight>) -> Result<Self, Error> {
        match flight.store.stage(&flight.digest, flight.origin) {
            Ok((staged, reserved)) => {
                flight.take_off(&*staged, reserved);
                let fill = Self::new(flight.clone(), staged.len());
                flight.start(Box::new(Ingest::new(flight, staged)));
                Ok(fill)
            }
            Err(error) => {
                flight.close();
                flight
                    .progress
                    .send_modify(|progress| progress.outcome = Some(Err(error.clone())));
                Err(error)
            }
        }
    }

    /// `offset`: bytes staged.
    fn new(flight: Arc<Flight>, offset: u64) -> Self {
        Self {
            flight,
            media_type: None,
            offset,
            position: offset,
            size: None,
            terms: Terms::default(),
            over: false,
        }
    }

    /// A reader of this fill.
    pub(crate) fn tail(&self) -> Tail {
        Tail::new(self.flight.clone())
    }

    /// The readers of this fill.
    pub fn readers(&self) -> Readers {
        Readers::of(&self.flight)
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
        self.flight.digest
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
        let flight = self.flight.clone();
        let need = Store::need(size.unwrap_or(self.position), self.media_type.as_ref());
        let mut terms = self.terms;
        terms.small = self.media_type.is_some() || size.is_some_and(|size| size <= SMALL);
        let reserved = blocking(move || flight.announce(size, need, terms)).await;
        if let Err(error) = reserved {
            // Refused today: what was staged before may be gone on with another time.
            let keep = matches!(error, Error::NotAdmitted { .. }) && self.position > 0;
            return Err(self.end(error, keep).await);
        }
        self.size = size;
        self.flight
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
        let mut progress = self.flight.progress.subscribe();
        let before = progress.borrow().generation;
        self.flight.order(Order::Clear);
        let cleared = progress
            .wait_for(|progress| progress.generation > before || progress.outcome.is_some())
            .await;
        if !cleared.is_ok_and(|progress| progress.outcome.is_none()) {
            return Err(self.flight.failure().await);
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
        self.flight.push(bytes).await?;
        self.position = actual;
        Ok(())
    }

    /// Checks length and digest, releases the last piece to the readers, commits durably. Cancelling it
    /// does not stop the commit.
    ///
    /// # Errors
    /// [`Error::WrongDigest`], [`Error::WrongSize`]: staged bytes are deleted, readers are cut.
    /// [`Error::Io`]: the content was right, readers have all of it, but it is not stored.
    pub async fn finish(mut self) -> Result<Object, Error> {
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
        self.flight.order(Order::Finish(self.media_type.take()));
        Ok(Object::new(self.flight.outcome().await?))
    }

    /// Gives up, telling the readers why. What is staged stays for the next leader.
    pub fn abandon(mut self, why: &str) {
        self.over = true;
        self.flight.order(Order::Abandon {
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
        self.flight.order(Order::Abandon { why, keep });
        self.flight.failure().await
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.over {
            let why = Error::Abandoned("the fetch was given up".into());
            self.flight.order(Order::Abandon { why, keep: true });
        }
    }
}
