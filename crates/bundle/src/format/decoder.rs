//! Reads a bundle as it arrives: bytes in, header and records out; no I/O.

use super::header::{Header, PRELUDE, Prelude};
use super::record::{End, Head};
use crate::{Coding, RECORD_HEAD, RecordHead};
use pierhead_toc::Error;

/// What a [`Decoder`] has put together.
#[derive(Debug)]
pub enum Event {
    /// The first event of a bundle from its beginning.
    Header {
        /// How it began.
        prelude: Prelude,
        /// The bytes of the body as they came, for a worker that keeps them.
        body: Vec<u8>,
        /// Decoded.
        header: Box<Header>,
    },
    /// The first event of a continuation.
    Continued(Prelude),
    /// A frame's record, its payload checked against its digest.
    Record {
        /// Which frame.
        frame: u32,
        /// How the payload is to be read.
        coding: Coding,
        /// The payload.
        payload: Vec<u8>,
    },
    /// The server does not send this frame, or sent another payload than its digest says: its contents are to be asked
    /// for one by one.
    Unsent {
        /// Which frame.
        frame: u32,
    },
    /// The last event: counts were right, and nothing may follow.
    End(End),
}

/// See the head of this module. Holds at most one header body or one payload.
pub struct Decoder {
    state: State,
    buffer: Vec<u8>,
    /// Codings as the header tells them; of a continuation, from the header that was read before.
    codings: Vec<Coding>,
    expected: Option<[u8; 32]>,
    next: u32,
    until: u32,
    counted: End,
}

enum State {
    Prelude,
    Body(Prelude),
    Head,
    Payload(u32, RecordHead),
    Ended,
}

const WHAT: &str = "bundle";

impl Decoder {
    /// For a request without `resume`: only a bundle from its beginning is taken.
    pub fn new() -> Self {
        Self {
            state: State::Prelude,
            buffer: Vec::new(),
            codings: Vec::new(),
            expected: None,
            next: 0,
            until: 0,
            counted: End {
                records: 0,
                payload: 0,
            },
        }
    }

    /// For a request with `resume`: a continuation of this header, or another bundle from its beginning.
    pub fn resumed(digest: [u8; 32], header: &Header) -> Self {
        Self {
            codings: header.frames.codings().collect(),
            expected: Some(digest),
            ..Self::new()
        }
    }

    /// Takes bytes from the front of `bytes` until an event is put together. `None`: all were taken, and more are needed.
    ///
    /// # Errors
    /// The bundle is not of the format; nothing may be fed afterwards.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Event>, Error> {
        loop {
            let needed = match &self.state {
                State::Prelude => PRELUDE,
                State::Body(prelude) => prelude.body_len(),
                State::Head => RECORD_HEAD,
                State::Payload(_, head) => usize::try_from(head.len).unwrap_or(usize::MAX),
                State::Ended if bytes.is_empty() => return Ok(None),
                State::Ended => return Err(wrong("bytes after its end")),
            };
            let missing = needed.saturating_sub(self.buffer.len());
            if self.buffer.is_empty() {
                // No capacity beyond it: it leaves as it is. The bound was checked with the length.
                self.buffer.reserve_exact(needed);
            }
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.buffer.extend_from_slice(taken);
            *bytes = rest;
            if taken.len() < missing {
                return Ok(None);
            }
            let whole = std::mem::take(&mut self.buffer);
            if let Some(event) = self.step(whole)? {
                return Ok(Some(event));
            }
        }
    }

    /// Bytes of the payload that comes next, once its head is read: what the decoder is about to hold.
    pub fn announced(&self) -> Option<u64> {
        match &self.state {
            State::Payload(_, head) => Some(head.len.into()),
            _ => None,
        }
    }

    /// Whether the end mark was read. A stream that ends before was cut: resume.
    pub const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    fn step(&mut self, whole: Vec<u8>) -> Result<Option<Event>, Error> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Prelude => {
                let prelude = Prelude::decode(&array(&whole)?)?;
                if prelude.piece {
                    return Err(wrong("a piece of a header, which nobody asked for"));
                }
                if !prelude.continued {
                    self.state = State::Body(prelude);
                    return Ok(None);
                }
                if self.expected != Some(prelude.digest) {
                    return Err(wrong("it continues another bundle"));
                }
                self.begin(&prelude)?;
                Ok(Some(Event::Continued(prelude)))
            }
            State::Body(prelude) => {
                let header = Box::new(Header::decode(&prelude, &whole)?);
                self.codings = header.frames.codings().collect();
                self.begin(&prelude)?;
                Ok(Some(Event::Header {
                    prelude,
                    body: whole,
                    header,
                }))
            }
            State::Head => self.head(Head::decode(&array(&whole)?)?),
            State::Payload(frame, head) => {
                self.counted.payload += u64::from(head.len);
                self.state = State::Head;
                if head.verify(&whole).is_err() {
                    // It rotted where it is kept: asked for again it would be the same.
                    return Ok(Some(Event::Unsent { frame }));
                }
                Ok(Some(Event::Record {
                    frame,
                    coding: head.coding,
                    payload: whole,
                }))
            }
            State::Ended => Err(wrong("bytes after its end")),
        }
    }

    fn begin(&mut self, prelude: &Prelude) -> Result<(), Error> {
        if usize::try_from(prelude.until).map_or(true, |until| until > self.codings.len()) {
            return Err(wrong("a range over the last frame"));
        }
        (self.next, self.until) = (prelude.first, prelude.until);
        self.state = State::Head;
        Ok(())
    }

    fn head(&mut self, head: Head) -> Result<Option<Event>, Error> {
        let frame = self.next_with_record();
        if let Head::End(end) = head {
            if frame.is_some() || end != self.counted {
                return Err(wrong(
                    "it ends before its last record, or with wrong counts",
                ));
            }
            return Ok(Some(Event::End(end)));
        }
        let (frame, planned) = frame.ok_or_else(|| wrong("a record too many"))?;
        self.next = frame + 1;
        self.counted.records += 1;
        self.state = State::Head;
        match head {
            // A server that finds a patch not worth it sends the bytes themselves; the other way round there are no bases.
            Head::Record(head) if head.coding == Coding::Patch && planned != Coding::Patch => {
                Err(wrong("a patch against nothing"))
            }
            Head::Record(head) => {
                self.state = State::Payload(frame, head);
                Ok(None)
            }
            _ => Ok(Some(Event::Unsent { frame })),
        }
    }

    /// Frames that copy have no record.
    fn next_with_record(&self) -> Option<(u32, Coding)> {
        (self.next..self.until)
            .filter_map(|frame| {
                let at = usize::try_from(frame).ok()?;
                Some((frame, *self.codings.get(at)?))
            })
            .find(|(_, coding)| *coding != Coding::Copy)
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Error> {
    bytes
        .try_into()
        .map_err(|_| wrong("a part of another length"))
}

fn wrong(why: &str) -> Error {
    Error::malformed(WHAT, why)
}
