//! The header of a bundle: from one answer, or in pieces from as many as there are shares.

use std::io::Read as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pierhead_bundle::api::Share;
use pierhead_bundle::format::{Decoder, Event, Header, PRELUDE, Prelude};

use super::super::Error;
use super::super::http::{Body, Server};

/// Read from a socket at a time.
const PIECE: usize = 64 << 10;
/// What a piece may take after the first one, at least, and in round trips: room for what was lost on the way to come again.
const LATE: Duration = Duration::from_secs(1);
const LATE_TRIPS: u32 = 4;

/// The beginning of a bundle.
pub(in super::super) struct Began {
    pub(in super::super) etag: String,
    pub(in super::super) prelude: Prelude,
    pub(in super::super) body: Vec<u8>,
    pub(in super::super) header: Box<Header>,
    /// Behind the header.
    pub(in super::super) decoder: Decoder,
    /// Bytes that were read behind the header.
    pub(in super::super) rest: Vec<u8>,
    /// What is behind them.
    pub(in super::super) from: Body,
}

impl Began {
    /// Reads up to the end of the header, or of the piece of it that is this share's, and waits for the others with this
    /// `patience`. `None`: they do not come, or do not go together.
    ///
    /// # Errors
    /// It was cut; it is not of the format.
    pub(super) fn read(
        server: &Server,
        etag: String,
        mut from: Body,
        share: Option<(Share, &Pieces)>,
        patience: Duration,
    ) -> Result<Option<Self>, Error> {
        let doing = || format!("the bundle of {} was cut", server.url());
        let mut bytes = [0; PRELUDE];
        from.read_exact(&mut bytes).map_err(Error::cut(doing()))?;
        let prelude = Prelude::decode(&bytes)?;
        let Some((share, pieces)) = share.filter(|_| prelude.piece) else {
            return read_header(server, etag, from, &bytes).map(Some);
        };
        let own = piece(&mut from, &prelude, share).map_err(Error::cut(doing()))?;
        let Some(body) = pieces.all(&etag, &prelude, own, patience) else {
            return Ok(None);
        };
        let whole = Prelude {
            continued: false,
            piece: false,
            ..prelude
        };
        // Whoever sent one that is of another bundle may send all of it right.
        let Ok(header) = Header::decode(&whole, &body) else {
            return Ok(None);
        };
        Ok(Some(Self {
            etag,
            prelude: whole,
            body,
            decoder: Decoder::resumed(whole.digest, &header),
            header: Box::new(header),
            rest: stripped(&prelude).to_vec(),
            from,
        }))
    }
}

/// Reads up to the end of the header, of which these bytes were read already.
///
/// # Errors
/// It was cut; it is not of the format.
pub(in super::super) fn read_header(
    server: &Server,
    etag: String,
    mut from: Body,
    read: &[u8],
) -> Result<Began, Error> {
    let mut decoder = Decoder::new();
    let mut piece = vec![0; PIECE];
    piece[..read.len()].copy_from_slice(read);
    let mut read = read.len();
    loop {
        let mut bytes = &piece[..read];
        match decoder.feed(&mut bytes)? {
            None => {}
            Some(Event::Header {
                prelude,
                body,
                header,
            }) => {
                return Ok(Began {
                    etag,
                    prelude,
                    body,
                    header,
                    decoder,
                    rest: bytes.to_vec(),
                    from,
                });
            }
            Some(_) => {
                let why = "a bundle without a header".to_owned();
                return Err(Error::Strange(server.url().to_string(), why));
            }
        }
        let doing = format!("the bundle of {} was cut", server.url());
        read = from.read(&mut piece).map_err(Error::cut(doing.clone()))?;
        if read == 0 {
            return Err(Error::cut(doing)(std::io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// What is waited for a piece once the first one is here, over connections of that round trip: then all of the header is asked for.
pub(super) fn patience(rtt: Duration) -> Duration {
    LATE.max(rtt.saturating_mul(LATE_TRIPS))
}

/// The piece of the header that is in front of a share.
pub(super) fn piece(from: &mut Body, prelude: &Prelude, share: Share) -> std::io::Result<Vec<u8>> {
    let range = share.of(u64::from(prelude.body));
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The prelude that would have begun a share without its piece.
pub(super) fn stripped(prelude: &Prelude) -> [u8; PRELUDE] {
    let stripped = Prelude {
        piece: false,
        ..*prelude
    };
    stripped.encode()
}

/// Where the shares beside the first put their pieces.
pub(super) struct Pieces {
    came: Mutex<Vec<Came>>,
    changed: Condvar,
}

#[derive(Clone, PartialEq, Eq)]
enum Came {
    NotYet,
    Piece {
        etag: String,
        digest: [u8; 32],
        bytes: Vec<u8>,
    },
    Nothing,
}

/// The place of one share's piece; dropped, there will be none.
pub(super) struct Place<'a> {
    pieces: &'a Pieces,
    at: usize,
}

impl Pieces {
    /// For the shares from 1 on, of so many.
    pub(super) fn new(among: usize) -> Self {
        Self {
            came: Mutex::new(vec![Came::NotYet; among.saturating_sub(1)]),
            changed: Condvar::new(),
        }
    }

    /// For a share from 1 on.
    pub(super) fn place(&self, nth: usize) -> Place<'_> {
        Place {
            pieces: self,
            at: nth.saturating_sub(1),
        }
    }

    /// The body of the header, once all pieces are here; `None` when one is not of the same bundle, or does not come.
    fn all(
        &self,
        etag: &str,
        prelude: &Prelude,
        own: Vec<u8>,
        patience: Duration,
    ) -> Option<Vec<u8>> {
        let late = Instant::now() + patience;
        let mut came = self.lock();
        while came.contains(&Came::NotYet) && !came.contains(&Came::Nothing) {
            let left = late.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(came, left);
            came = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut body = own;
        for piece in came.drain(..) {
            match piece {
                Came::Piece {
                    etag: of,
                    digest,
                    bytes,
                } if of == etag && digest == prelude.digest => body.extend(bytes),
                _ => return None,
            }
        }
        Some(body)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Came>> {
        self.came.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, at: usize, piece: Came) {
        if let Some(place) = self.lock().get_mut(at)
            && *place == Came::NotYet
        {
            *place = piece;
        }
        self.changed.notify_all();
    }
}

impl Place<'_> {
    pub(super) fn put(self, etag: &str, prelude: &Prelude, bytes: Vec<u8>) {
        let piece = Came::Piece {
            etag: etag.to_owned(),
            digest: prelude.digest,
            bytes,
        };
        self.pieces.put(self.at, piece);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pieces.put(self.at, Came::Nothing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"e\"";

    fn prelude(digest: u8) -> Prelude {
        Prelude {
            continued: true,
            piece: true,
            layers: false,
            body: 9,
            first: 0,
            until: 0,
            digest: [digest; 32],
        }
    }

    /// What comes of `ab` from the first of three, when the others have put what is told.
    fn all(second: Option<(&str, u8)>, third: Option<(&str, u8)>) -> Option<Vec<u8>> {
        let pieces = Pieces::new(3);
        for (nth, piece, bytes) in [(2, third, "efg"), (1, second, "cd")] {
            let place = pieces.place(nth);
            if let Some((etag, digest)) = piece {
                place.put(etag, &prelude(digest), bytes.into());
            }
        }
        pieces.all(ETAG, &prelude(1), b"ab".to_vec(), Duration::ZERO)
    }

    #[test]
    fn pieces_are_put_together_in_their_order() {
        let right = Some((ETAG, 1));
        assert_eq!(all(right, right).as_deref(), Some(&b"abcdefg"[..]));
    }

    #[test]
    fn one_that_does_not_come_or_is_of_another_bundle_spoils_them() {
        let right = Some((ETAG, 1));
        for wrong in [None, Some((ETAG, 2)), Some(("\"f\"", 1))] {
            assert_eq!(all(right, wrong), None);
            assert_eq!(all(wrong, right), None);
        }
    }

    #[test]
    fn what_nobody_puts_is_not_waited_for_for_ever() {
        let pieces = Pieces::new(2);
        let _place = pieces.place(1);
        let all = pieces.all(ETAG, &prelude(1), Vec::new(), Duration::ZERO);
        assert_eq!(all, None);
    }

    #[test]
    fn what_comes_later_is_waited_for() {
        let pieces = Pieces::new(2);
        let place = pieces.place(1);
        let whole = std::thread::scope(|scope| {
            scope.spawn(|| place.put(ETAG, &prelude(1), b"cd".to_vec()));
            let long = Duration::from_secs(3600);
            pieces.all(ETAG, &prelude(1), b"ab".to_vec(), long)
        });
        assert_eq!(whole.as_deref(), Some(&b"abcd"[..]));
    }

    #[test]
    fn a_way_that_is_long_is_given_more_time() {
        let [near, far] = [3, 700].map(|millis| patience(Duration::from_millis(millis)));
        assert_eq!(near, Duration::from_secs(1));
        assert_eq!(far, Duration::from_millis(2800));
    }
}
