//! A parser of bundles: the caller passes received bytes, and the parser returns the header and the
//! records. The parser does no I/O.

use super::header::{Header, PRELUDE, Prelude};
use super::record::{End, Head};
use crate::Error;
use crate::{Coding, RECORD_HEAD, RecordHead};

/// An event of a [`Decoder`].
#[derive(Debug)]
pub enum Event {
    /// The header: the first event of a complete bundle.
    Header {
        /// The prelude of the bundle.
        prelude: Prelude,
        /// The bytes of the header's body, which the caller may store.
        body: Vec<u8>,
        /// The decoded header of the bundle.
        header: Box<Header>,
    },
    /// The first event of a continuation (a response without a header).
    Continued(Prelude),
    /// The record of a frame. The payload was verified against its digest.
    Record {
        /// Number of the frame in the bundle.
        frame: u32,
        /// The coding of the payload.
        coding: Coding,
        /// The payload: the encoded bytes of the frame.
        payload: Vec<u8>,
    },
    /// The server does not send this frame, or its payload is corrupt. In both cases, the worker
    /// requests the contents of the frame one by one.
    Unsent {
        /// Number of the frame in the bundle.
        frame: u32,
    },
    /// The end mark: the last event, after which no byte may follow. The counts in the end mark
    /// match the received records.
    End(End),
}

/// The parser of a bundle. The parser holds at most one header body or one payload in memory.
pub struct Decoder {
    state: State,
    buffer: Vec<u8>,
    /// The codings of all frames, as the header states them. For a continuation, this is the header
    /// that was received before.
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

const FORMAT_NAME: &str = "bundle";

impl Decoder {
    /// Creates a decoder for a response that must be a complete bundle.
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

    /// Creates a decoder for a response that is a complete bundle, or a continuation of the bundle
    /// with this header.
    pub fn resumed(digest: [u8; 32], header: &Header) -> Self {
        Self {
            codings: header.frames.codings().collect(),
            expected: Some(digest),
            ..Self::new()
        }
    }

    /// Takes bytes from the front of `bytes` until an event is complete. Returns `None` if all
    /// bytes were taken and the event needs more bytes.
    ///
    /// # Errors
    /// The bundle is malformed. After an error, the caller must not feed more bytes.
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
                // Reserves the exact capacity, since the buffer becomes a part of the event. The
                // length is within its limit, which was checked before.
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

    /// Returns the length of the next payload, if the head of its record was already read. The
    /// decoder will hold this number of bytes in memory.
    pub fn announced(&self) -> Option<u64> {
        match &self.state {
            State::Payload(_, head) => Some(head.len.into()),
            _ => None,
        }
    }

    /// Whether the decoder has read the end mark. A response that ends before its end mark was
    /// interrupted, so the worker resumes it.
    pub const fn is_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    fn step(&mut self, whole: Vec<u8>) -> Result<Option<Event>, Error> {
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Prelude => {
                let prelude = Prelude::decode(&array(&whole)?)?;
                if prelude.piece {
                    return Err(wrong("a piece of a header, which was not requested"));
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
                    // The payload does not match its digest. The record is corrupt on the server,
                    // so a retry would return the same bytes.
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
            // Where the header announces a patch, a server may send the frame in another coding,
            // which needs no bases. The reverse is an error, since a frame that is not announced as
            // a patch has no bases.
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

    /// Returns the next frame that has a record. Frames with the coding `Copy` have no record.
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
    Error::malformed(FORMAT_NAME, why)
}
