//! A planned bundle on its way out: ranges of files that follow each other are one, the rest is made when it is its turn.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::plan_file::{PlanFile, PlanRecord};
use crate::pack::RecordLocation;
use crate::pack::{PackFile, Packs};
use pierhead_bundle::RECORD_HEAD;
use pierhead_bundle::api::Share;
use pierhead_bundle::format::{End, PRELUDE, Prelude, unsent};
use pierhead_toc::Error;

/// What leaves next.
pub enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A range of a file that outlives its eviction.
    File {
        /// Which.
        file: SentFile,
        /// First byte.
        offset: u64,
        /// Bytes; at least one.
        len: u64,
    },
}

/// A file of the library that is open.
#[derive(Clone)]
pub enum SentFile {
    /// A plan.
    Plan(Arc<File>),
    /// A pack, which is not evicted meanwhile.
    Pack(Arc<PackFile>),
}

impl SentFile {
    /// To send or read from.
    pub fn file(&self) -> &File {
        match self {
            Self::Plan(file) => file,
            Self::Pack(pack) => pack.file(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plan(one), Self::Plan(other)) => Arc::ptr_eq(one, other),
            (Self::Pack(one), Self::Pack(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// A bundle that was planned, and is there to be sent.
#[derive(Clone)]
pub struct Bundle {
    pub(super) plan: Arc<PlanFile>,
    pub(super) packs: Arc<Packs>,
}

impl Bundle {
    /// The strong `ETag`, quotes included.
    pub fn etag(&self) -> &str {
        &self.plan.etag
    }

    /// Frames, those without a record included.
    pub fn frames(&self) -> u32 {
        self.plan.frames()
    }

    /// Begins to send it: all of it, or (`range`, first frame and the one behind the last) records alone.
    ///
    /// # Errors
    /// Those of its file.
    pub fn stream(&self, range: Option<(u32, u32)>) -> Result<Stream, Error> {
        let frames = self.frames();
        match range {
            Some((first, until)) => {
                let first = first.min(frames);
                self.send(Begin::Continued, first, until.min(frames).max(first))
            }
            None => self.send(Begin::Header, 0, frames),
        }
    }

    /// Begins to send one share, the first with the header, or, with `pieces`, each with its piece of that. Together they are the
    /// bundle; they are of about as many bytes, as far as frames can be parted. Costs a look at each frame's place.
    ///
    /// # Errors
    /// Those of its file.
    pub fn share(&self, share: Share, pieces: bool) -> Result<Stream, Error> {
        let Share(nth, of) = share;
        let frames = self.frames();
        let len = |frame| match self.plan.record(frame) {
            Some(
                PlanRecord::InPlan { len, .. } | PlanRecord::InPack(RecordLocation { len, .. }),
            ) => u64::from(len),
            _ => 0,
        };
        let all = (0..frames).fold(self.plan.header, |sum, frame| sum + len(frame));
        // The first frame that begins at or behind the share's place.
        let cut = |nth: u16| {
            let place = all.saturating_mul(u64::from(nth)) / u64::from(of.max(1));
            let mut sum = self.plan.header;
            (0..frames).find(|frame| {
                let begins = sum;
                sum += len(*frame);
                begins >= place
            })
        };
        let first = if nth == 0 {
            0
        } else {
            cut(nth).unwrap_or(frames)
        };
        let until = match nth.saturating_add(1) {
            next if next < of => cut(next).unwrap_or(frames),
            _ => frames,
        };
        let begin = match pieces {
            true => Begin::Piece(share),
            false if nth == 0 => Begin::Header,
            false => Begin::Continued,
        };
        self.send(begin, first, until)
    }

    fn send(&self, begin: Begin, first: u32, until: u32) -> Result<Stream, Error> {
        let prelude = Prelude {
            continued: !matches!(begin, Begin::Header),
            piece: matches!(begin, Begin::Piece(_)),
            first,
            until,
            ..self.plan.prelude
        };
        let mut stream = Stream {
            source: Source::Bundle {
                plan: self.plan.clone(),
                packs: self.packs.clone(),
                at: first,
                until,
            },
            before: Some(prelude.encode()),
            header: match begin {
                Begin::Header => 0..self.plan.header,
                Begin::Piece(share) => share.of(self.plan.header),
                Begin::Continued => 0..0,
            },
            end: End {
                records: 0,
                payload: 0,
            },
            len: None,
        };
        stream.len = stream.count();
        Ok(stream)
    }
}

/// What is before the records.
#[derive(Clone, Copy)]
enum Begin {
    Header,
    Piece(Share),
    Continued,
}

/// Bytes in pieces, each made when it is asked for.
pub struct Stream {
    source: Source,
    before: Option<[u8; PRELUDE]>,
    /// What of the header's body is still to leave.
    header: Range<u64>,
    end: End,
    len: Option<u64>,
}

enum Source {
    Bundle {
        plan: Arc<PlanFile>,
        packs: Arc<Packs>,
        at: u32,
        until: u32,
    },
    /// One content.
    File {
        source: Arc<dyn pierhead_toc::Source + Send + Sync>,
        content: pierhead_toc::FileDigest,
        at: u64,
        size: u64,
    },
    Done,
}

/// No pack has this number.
const NO_PACK: u32 = u32::MAX;

/// Bytes of a content that are read at once: as many as an answer is counted to hold.
const READ: u64 = 128 << 10;

impl Stream {
    /// One content from wherever it lies.
    pub(super) fn of_file(
        source: Arc<dyn pierhead_toc::Source + Send + Sync>,
        content: pierhead_toc::FileDigest,
        size: u64,
    ) -> Self {
        Self {
            source: Source::File {
                source,
                content,
                at: 0,
                size,
            },
            before: None,
            header: 0..0,
            end: End {
                records: 0,
                payload: 0,
            },
            len: Some(size),
        }
    }

    /// Bytes in all, when they are known beforehand.
    pub const fn len(&self) -> Option<u64> {
        self.len
    }

    /// Whether nothing will come.
    pub fn is_empty(&self) -> bool {
        self.len == Some(0)
    }

    fn count(&self) -> Option<u64> {
        let Source::Bundle {
            plan,
            packs,
            at,
            until,
        } = &self.source
        else {
            return self.len;
        };
        let mut len = u64::try_from(PRELUDE + RECORD_HEAD).ok()?;
        len += self.header.end - self.header.start;
        for nth in *at..*until {
            len += match plan.record(nth)? {
                PlanRecord::Absent => 0,
                PlanRecord::InPlan { len, .. } => u64::from(len),
                PlanRecord::InPack(place) if packs.contains(&place) => u64::from(place.len),
                // Nobody knows how long it becomes when it is made again.
                PlanRecord::InPack(_) => return None,
            };
        }
        Some(len)
    }

    /// The next piece, if nothing has to be read or made for it.
    pub fn next_ready(&mut self) -> Option<Piece> {
        if let Some(prelude) = self.before.take() {
            return Some(Piece::Bytes(prelude.to_vec()));
        }
        let Source::Bundle {
            plan,
            packs,
            at,
            until,
        } = &mut self.source
        else {
            return None;
        };
        let header = std::mem::take(&mut self.header);
        if !header.is_empty() {
            return Some(Piece::File {
                file: SentFile::Plan(plan.file.clone()),
                offset: plan.header_at + header.start,
                len: header.end - header.start,
            });
        }
        let mut run: Option<(u32, SentFile, u64, u64)> = None;
        while *at < *until {
            let lies = plan.record(*at)?;
            let (pack, file, offset, len) = match lies {
                PlanRecord::Absent => {
                    *at += 1;
                    continue;
                }
                PlanRecord::InPlan { offset, len } => {
                    let file = SentFile::Plan(plan.file.clone());
                    (NO_PACK, file, offset, len)
                }
                // It is read first, against its checksum, which is no work for whoever may not wait.
                PlanRecord::InPack(place) if !packs.is_verified(&place) => break,
                PlanRecord::InPack(place) => {
                    let open = match &run {
                        // The same pack is open already.
                        Some((pack, file, ..)) if *pack == place.pack => file.clone(),
                        _ => match packs.file(&place) {
                            Ok(file) => SentFile::Pack(file),
                            Err(_) => break,
                        },
                    };
                    (place.pack, open, place.offset, place.len)
                }
            };
            let len = u64::from(len);
            match &mut run {
                None => run = Some((pack, file, offset, len)),
                Some((_, of, first, all)) if of.is_same(&file) && *first + *all == offset => {
                    *all += len;
                }
                Some(_) => break,
            }
            *at += 1;
            self.end.records += 1;
            self.end.payload += len.saturating_sub(RECORD_HEAD as u64);
        }
        if let Some((_, file, offset, len)) = run {
            return Some(Piece::File { file, offset, len });
        }
        if *at >= *until {
            self.source = Source::Done;
            return Some(Piece::Bytes(self.end.encode().to_vec()));
        }
        None
    }

    /// The next piece; `None` at the end. Blocks; up to a frame's memory and work.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn next_piece(&mut self) -> Result<Option<Piece>, Error> {
        if let Some(piece) = self.next_ready() {
            return Ok(Some(piece));
        }
        match &mut self.source {
            Source::Done => Ok(None),
            Source::Bundle {
                plan,
                packs,
                at,
                until,
            } => {
                if check(plan, packs, *at, *until) {
                    // Nobody can have forgotten it since, but for the upkeep.
                    if let Some(piece) = self.next_ready() {
                        return Ok(Some(piece));
                    }
                    return self.next_piece();
                }
                // Its pack is gone: the worker asks for what was in it one by one.
                *at += 1;
                self.end.records += 1;
                Ok(Some(Piece::Bytes(unsent().to_vec())))
            }
            Source::File {
                source,
                content,
                at,
                size,
            } => {
                let len = (*size - *at).min(READ);
                if len == 0 {
                    self.source = Source::Done;
                    return Ok(None);
                }
                let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
                let read = source.read_at(content, *at, &mut bytes);
                read.map_err(|error| Error::io(format!("read {content}"), error))?;
                *at += len;
                Ok(Some(Piece::Bytes(bytes)))
            }
        }
    }
}

/// Reads the records that come next, in one pack, so that they may leave unread. Whether the first of them is sound.
fn check(plan: &PlanFile, packs: &Packs, first: u32, until: u32) -> bool {
    /// What a socket takes in a few calls.
    const AHEAD: u64 = 4 << 20;
    let mut sum = 0;
    for nth in first..until {
        match plan.record(nth) {
            Some(PlanRecord::InPack(place)) => {
                if packs.check(&place).is_err() {
                    return nth > first;
                }
                sum += u64::from(place.len);
            }
            _ => return nth > first,
        }
        if sum >= AHEAD {
            break;
        }
    }
    true
}
