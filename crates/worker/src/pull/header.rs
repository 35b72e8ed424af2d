//! The header of a bundle: read from one response, or assembled from pieces. Each piece arrives
//! with one share (the part of the bundle for one connection).

use std::io::Read as _;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use pierhead_bundle::api::Share;
use pierhead_bundle::format::{Decoder, Event, Header, PRELUDE, Prelude};

use crate::http::Body;
use crate::{Error, Server};

const READ_SIZE: usize = 64 << 10;
/// Minimum time that the worker waits for the other pieces of a header after the first piece. This
/// minimum leaves time for TCP retransmissions.
const MIN_PIECE_TIMEOUT: Duration = Duration::from_secs(1);
/// The wait for the other pieces of a header, as a number of round trips. The worker waits for this
/// time or for [`MIN_PIECE_TIMEOUT`], whichever is longer.
const PIECE_TIMEOUT_ROUND_TRIPS: u32 = 4;

/// A bundle whose header was received, and the rest of its response.
pub(crate) struct BundleStart {
    pub(crate) etag: String,
    pub(crate) prelude: Prelude,
    pub(crate) body: Vec<u8>,
    pub(crate) header: Box<Header>,
    /// Decodes the records after the header.
    pub(crate) decoder: Decoder,
    /// Bytes after the header that were read with it.
    pub(crate) rest: Vec<u8>,
    /// The part of the response that is not read yet.
    pub(crate) from: Body,
}

impl BundleStart {
    /// Reads the header, or the piece of the header that belongs to `share`. After its own piece,
    /// waits at most `timeout` for the other pieces. Returns `None` if a piece does not arrive or
    /// belongs to another bundle.
    ///
    /// # Errors
    /// Errors of the connection, and errors of the format of a header.
    pub(super) fn read(
        server: &Server,
        etag: String,
        mut from: Body,
        share: Option<(Share, &HeaderPieces)>,
        timeout: Duration,
    ) -> Result<Option<Self>, Error> {
        let doing = || {
            format!(
                "the transfer of a bundle from {} was interrupted",
                server.url()
            )
        };
        let mut bytes = [0; PRELUDE];
        from.read_exact(&mut bytes)
            .map_err(Error::connection(doing()))?;
        let prelude = Prelude::decode(&bytes)?;
        let Some((share, pieces)) = share.filter(|_| prelude.piece) else {
            return read_header(server, etag, from, &bytes).map(Some);
        };
        let own = read_piece(&mut from, &prelude, share).map_err(Error::connection(doing()))?;
        let Some(body) = pieces.assemble(&etag, &prelude, own, timeout) else {
            return Ok(None);
        };
        let full = Prelude {
            continued: false,
            piece: false,
            ..prelude
        };
        // The pieces may belong to different bundles. The caller then requests the whole header,
        // which belongs to one bundle.
        let Ok(header) = Header::decode(&full, &body) else {
            return Ok(None);
        };
        Ok(Some(Self {
            etag,
            prelude: full,
            body,
            decoder: Decoder::resumed(full.digest, &header),
            header: Box::new(header),
            rest: without_piece(&prelude).to_vec(),
            from,
        }))
    }
}

/// Reads a header from one response. `read` contains the first bytes of the response.
///
/// # Errors
/// Errors of the connection, and errors of the format of a header.
pub(crate) fn read_header(
    server: &Server,
    etag: String,
    mut from: Body,
    read: &[u8],
) -> Result<BundleStart, Error> {
    let mut decoder = Decoder::new();
    let mut buffer = vec![0; READ_SIZE];
    buffer[..read.len()].copy_from_slice(read);
    let mut read = read.len();
    loop {
        let mut bytes = &buffer[..read];
        match decoder.feed(&mut bytes)? {
            None => {}
            Some(Event::Header {
                prelude,
                body,
                header,
            }) => {
                return Ok(BundleStart {
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
                return Err(Error::protocol(server.url(), "the bundle has no header"));
            }
        }
        let doing = format!(
            "the transfer of a bundle from {} was interrupted",
            server.url()
        );
        read = from
            .read(&mut buffer)
            .map_err(Error::connection(doing.clone()))?;
        if read == 0 {
            return Err(Error::connection(doing)(
                std::io::ErrorKind::UnexpectedEof.into(),
            ));
        }
    }
}

/// Returns the time that the worker waits for the other pieces of a header after the first piece.
/// After this time, the worker requests the whole header.
pub(super) fn piece_timeout(round_trip: Duration) -> Duration {
    MIN_PIECE_TIMEOUT.max(round_trip.saturating_mul(PIECE_TIMEOUT_ROUND_TRIPS))
}

/// Reads the piece of the header that precedes a share of the bundle.
pub(super) fn read_piece(
    from: &mut Body,
    prelude: &Prelude,
    share: Share,
) -> std::io::Result<Vec<u8>> {
    let range = share.of(u64::from(prelude.body));
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the prelude of the same share without a piece of the header.
pub(super) fn without_piece(prelude: &Prelude) -> [u8; PRELUDE] {
    let without = Prelude {
        piece: false,
        ..*prelude
    };
    without.encode()
}

/// Collects the pieces of the header that arrive with all shares except the first.
pub(super) struct HeaderPieces {
    states: Mutex<Vec<PieceState>>,
    changed: Condvar,
}

#[derive(Clone, PartialEq, Eq)]
enum PieceState {
    Expected,
    Received {
        etag: String,
        digest: [u8; 32],
        bytes: Vec<u8>,
    },
    Failed,
}

/// The slot for the header piece of one share. Dropping an empty slot signals that the piece will
/// not arrive.
pub(super) struct PieceSlot<'a> {
    pieces: &'a HeaderPieces,
    index: usize,
}

impl HeaderPieces {
    /// Expects a header piece from each of `total` shares except the first.
    pub(super) fn new(total: usize) -> Self {
        Self {
            states: Mutex::new(vec![PieceState::Expected; total.saturating_sub(1)]),
            changed: Condvar::new(),
        }
    }

    /// Returns the slot of share `number`, counted from 1.
    pub(super) fn slot(&self, number: usize) -> PieceSlot<'_> {
        PieceSlot {
            pieces: self,
            index: number.saturating_sub(1),
        }
    }

    /// Waits for all pieces of the header, and returns the body of the header. Returns `None` if a
    /// piece belongs to another bundle or does not arrive within `timeout`.
    fn assemble(
        &self,
        etag: &str,
        prelude: &Prelude,
        own: Vec<u8>,
        timeout: Duration,
    ) -> Option<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        let mut states = self.states.lock();
        while states.contains(&PieceState::Expected) && !states.contains(&PieceState::Failed) {
            if self.changed.wait_until(&mut states, deadline).timed_out() {
                return None;
            }
        }
        let mut body = own;
        for piece in states.drain(..) {
            match piece {
                PieceState::Received {
                    etag: of,
                    digest,
                    bytes,
                } if of == etag && digest == prelude.digest => body.extend(bytes),
                _ => return None,
            }
        }
        Some(body)
    }

    fn put(&self, index: usize, piece: PieceState) {
        if let Some(state) = self.states.lock().get_mut(index)
            && *state == PieceState::Expected
        {
            *state = piece;
        }
        self.changed.notify_all();
    }
}

impl PieceSlot<'_> {
    pub(super) fn put(self, etag: &str, prelude: &Prelude, bytes: Vec<u8>) {
        let piece = PieceState::Received {
            etag: etag.to_owned(),
            digest: prelude.digest,
            bytes,
        };
        self.pieces.put(self.index, piece);
    }
}

impl Drop for PieceSlot<'_> {
    fn drop(&mut self) {
        self.pieces.put(self.index, PieceState::Failed);
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

    /// Assembles a header: the piece `ab` of the first share, and the pieces of a second and a
    /// third share.
    fn assemble(second: Option<(&str, u8)>, third: Option<(&str, u8)>) -> Option<Vec<u8>> {
        let pieces = HeaderPieces::new(3);
        for (number, piece, bytes) in [(2, third, "efg"), (1, second, "cd")] {
            let slot = pieces.slot(number);
            if let Some((etag, digest)) = piece {
                slot.put(etag, &prelude(digest), bytes.into());
            }
        }
        pieces.assemble(ETAG, &prelude(1), b"ab".to_vec(), Duration::ZERO)
    }

    #[test]
    fn pieces_are_joined_in_the_order_of_their_shares() {
        let right = Some((ETAG, 1));
        assert_eq!(assemble(right, right).as_deref(), Some(&b"abcdefg"[..]));
    }

    #[test]
    fn a_header_is_not_assembled_from_missing_or_foreign_pieces() {
        let right = Some((ETAG, 1));
        for wrong in [None, Some((ETAG, 2)), Some(("\"f\"", 1))] {
            assert_eq!(assemble(right, wrong), None);
            assert_eq!(assemble(wrong, right), None);
        }
    }

    #[test]
    fn the_wait_for_a_header_piece_ends_at_the_timeout() {
        let pieces = HeaderPieces::new(2);
        let _slot = pieces.slot(1);
        let header = pieces.assemble(ETAG, &prelude(1), Vec::new(), Duration::ZERO);
        assert_eq!(header, None);
    }

    #[test]
    fn the_header_is_complete_when_the_last_piece_arrives() {
        let pieces = HeaderPieces::new(2);
        let slot = pieces.slot(1);
        let header = std::thread::scope(|scope| {
            scope.spawn(|| slot.put(ETAG, &prelude(1), b"cd".to_vec()));
            let long = Duration::from_secs(3600);
            pieces.assemble(ETAG, &prelude(1), b"ab".to_vec(), long)
        });
        assert_eq!(header.as_deref(), Some(&b"abcd"[..]));
    }

    #[test]
    fn a_long_round_trip_extends_the_timeout() {
        let [near, far] = [3, 700].map(|millis| piece_timeout(Duration::from_millis(millis)));
        assert_eq!(near, Duration::from_secs(1));
        assert_eq!(far, Duration::from_millis(2800));
    }
}
