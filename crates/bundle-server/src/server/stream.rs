//! Divides the body of a response into pieces: the body is a bundle, or one file of an image.
//!
//! The plan of a bundle is a file with the bundle's header and the location of each record. A
//! record is the stored form of a frame (a group of file contents that are compressed together).
//! Adjacent records of a pack or a plan file are one piece, which the caller sends by `sendfile`.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::plan_file::{PlanFile, PlanRecord};
use crate::Error;
use crate::pack::RecordLocation;
use crate::pack::{PackFile, Packs};
use pierhead_bundle::RECORD_HEAD;
use pierhead_bundle::api::Share;
use pierhead_bundle::format::{End, PRELUDE, Prelude, unsent};

/// A piece of a response: the next bytes to send.
pub enum Piece {
    /// Bytes that are in memory.
    Bytes(Vec<u8>),
    /// A range of an open file. The range stays readable after the file was deleted.
    File {
        /// The file that contains the bytes.
        file: SentFile,
        /// Offset of the first byte in the file.
        offset: u64,
        /// Number of bytes to send; at least one.
        len: u64,
    },
}

/// An open file of the bundle server, from which a caller sends ranges.
#[derive(Clone)]
pub enum SentFile {
    /// A plan file, for records that no pack has.
    Plan(Arc<File>),
    /// A pack of the server. As long as this value exists, the server does not evict the pack.
    Pack(Arc<PackFile>),
}

impl SentFile {
    /// Returns the open file, to send from or to read.
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

/// A bundle that the server can send, since the plan of the bundle exists.
#[derive(Clone)]
pub struct Bundle {
    pub(super) plan: Arc<PlanFile>,
    pub(super) packs: Arc<Packs>,
}

impl Bundle {
    /// Returns the strong `ETag` of the bundle, including its quotes.
    pub fn etag(&self) -> &str {
        &self.plan.etag
    }

    /// Returns the number of frames, including frames without a record.
    pub fn frames(&self) -> u32 {
        self.plan.frames()
    }

    /// Streams the whole bundle, or only the records of the frames in `range`. The two numbers are
    /// the first frame, and the frame after the last frame.
    ///
    /// # Errors
    /// Errors of the plan file.
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

    /// Streams one share of the bundle. A share is a range of whole frames. All shares together are
    /// the whole bundle, and all shares have about the same number of bytes. The first share starts
    /// with the header. With `pieces`, each share starts with a piece of the header instead. The
    /// call looks up the location of each frame.
    ///
    /// # Errors
    /// Errors of the plan file.
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
        // The first frame whose offset in the bundle is at least the start of share `nth`.
        let cut = |nth: u16| {
            let location = all.saturating_mul(u64::from(nth)) / u64::from(of.max(1));
            let mut sum = self.plan.header;
            (0..frames).find(|frame| {
                let begins = sum;
                sum += len(*frame);
                begins >= location
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

/// Which part of the header a response has before the records.
#[derive(Clone, Copy)]
enum Begin {
    Header,
    Piece(Share),
    Continued,
}

/// The sequence of the pieces of a response. Each piece is read only when the caller takes it.
pub struct Stream {
    source: Source,
    before: Option<[u8; PRELUDE]>,
    /// The range of the header's body that is not sent yet.
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
    /// The stream of one file content of an image.
    File {
        source: Arc<dyn pierhead_toc::Source + Send + Sync>,
        content: pierhead_toc::FileDigest,
        at: u64,
        size: u64,
    },
    Done,
}

/// A number that no pack has, with the meaning "no pack is open".
const NO_PACK: u32 = u32::MAX;

/// Number of bytes of a content that one read returns. This number counts towards the memory limit
/// of responses.
const READ_SIZE: u64 = 128 << 10;

impl Stream {
    /// Creates the stream of one file content of an image.
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

    /// Returns the number of bytes of the stream, if this number is known in advance.
    pub const fn len(&self) -> Option<u64> {
        self.len
    }

    /// Whether the stream has no bytes at all.
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
                PlanRecord::InPack(location) if packs.contains(&location) => {
                    u64::from(location.len)
                }
                // The pack no longer exists, so the record is not sent.
                PlanRecord::InPack(_) => return None,
            };
        }
        Some(len)
    }

    /// Returns the next piece, if the piece is available without a read from the disk.
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
            let record = plan.record(*at)?;
            let (pack, file, offset, len) = match record {
                PlanRecord::Absent => {
                    *at += 1;
                    continue;
                }
                PlanRecord::InPlan { offset, len } => {
                    let file = SentFile::Plan(plan.file.clone());
                    (NO_PACK, file, offset, len)
                }
                // A record that is not verified has to be read first. Since a read may block, this
                // function stops here.
                PlanRecord::InPack(location) if !packs.is_verified(&location) => break,
                PlanRecord::InPack(location) => {
                    let open = match &run {
                        // The stream has already opened this pack.
                        Some((pack, file, ..)) if *pack == location.pack => file.clone(),
                        _ => match packs.file(&location) {
                            Ok(file) => SentFile::Pack(file),
                            Err(_) => break,
                        },
                    };
                    (location.pack, open, location.offset, location.len)
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

    /// Returns the next piece, or `None` at the end of the stream. The call may block on the disk,
    /// and takes at most the memory of one frame.
    ///
    /// # Errors
    /// Errors of the disk.
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
                if verify_next(plan, packs, *at, *until) {
                    // The records have just been verified, so this call finds a piece, unless
                    // maintenance has marked the records as unverified in between.
                    if let Some(piece) = self.next_ready() {
                        return Ok(Some(piece));
                    }
                    return self.next_piece();
                }
                // The pack no longer exists, so the record is not sent. The worker requests the
                // contents of this frame one by one.
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
                let len = (*size - *at).min(READ_SIZE);
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

/// Verifies the next records in packs, so that they can be sent by `sendfile`. Returns whether the
/// first of these records is intact.
fn verify_next(plan: &PlanFile, packs: &Packs, first: u32, until: u32) -> bool {
    /// Maximum number of bytes that the server verifies in advance. A socket takes as many bytes in
    /// a few calls.
    const MAX_VERIFIED_AHEAD: u64 = 4 << 20;
    let mut sum = 0;
    for nth in first..until {
        match plan.record(nth) {
            Some(PlanRecord::InPack(location)) => {
                if packs.check(&location).is_err() {
                    return nth > first;
                }
                sum += u64::from(location.len);
            }
            _ => return nth > first,
        }
        if sum >= MAX_VERIFIED_AHEAD {
            break;
        }
    }
    true
}
