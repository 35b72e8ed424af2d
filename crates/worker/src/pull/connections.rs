//! Extra connections of a pull. A bundle can be divided into shares, one for each connection. Each
//! extra connection requests its share of the bundle while the first connection requests the
//! header, and buffers this share until the header has arrived.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use pierhead_bundle::api::{self, BundleQuery};
use pierhead_bundle::format::{PRELUDE, Prelude};
use pierhead_oci::Reference;

use super::header::{self, HeaderPieces, PieceSlot};
use super::preconnect::Connecting;
use super::request::{BundleResponse, request_bundle};
use crate::Server;
use crate::http::{Body, Session};

/// Maximum number of bytes that all shares (the parallel parts of one bundle) together buffer until
/// the header of the bundle has arrived. The header arrives three or four round trips after the
/// first byte of a share. Bytes beyond this maximum stay in socket buffers, and so the sender has
/// to wait. With a maximum of 4 MiB, a pull of 24 MB over a round trip of 150 ms took 0.3 s longer.
const MAX_BUFFERED: usize = 14 << 20;
const READ_SIZE: usize = 32 << 10;

/// An extra connection of a pull, in addition to the first connection.
pub(super) struct ExtraConnection {
    pub(super) session: Session,
    /// The share of the bundle that arrives over this connection. `None` if the connection
    /// requested no share, or if the server sent no share.
    pub(super) share: Option<ShareStream>,
}

/// A share of a bundle (the part for one connection) that a connection is receiving.
pub(super) struct ShareStream {
    pub(super) etag: String,
    pub(super) prelude: Prelude,
    /// The received bytes, which begin with the prelude of the share.
    pub(super) buffered: Vec<u8>,
    /// The part of the response that is not read yet.
    pub(super) body: Body,
}

/// Extra connections of a pull, each of which connects and receives in its own thread. Dropping
/// this value ends the threads.
#[derive(Default)]
pub(super) struct ExtraConnections {
    /// The threads; `None` for a thread that the system could not start.
    threads: Vec<Option<JoinHandle<Option<ExtraConnection>>>>,
    /// Set when the threads have to stop buffering: the header has arrived, or the shares are not
    /// needed.
    stop: Arc<AtomicBool>,
    /// Pieces of the header, if each connection requests one piece.
    pieces: Option<Arc<HeaderPieces>>,
}

impl ExtraConnections {
    /// Opens `total - 1` connections. Uses the connections of `preconnected` first. If there is a
    /// `query`, each connection requests its share of the bundle.
    pub(super) fn open(
        server: &Server,
        image: &Reference,
        query: Option<&BundleQuery>,
        total: usize,
        preconnected: Vec<Connecting>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let buffer_limit = MAX_BUFFERED / total.max(1);
        let pieces = query.filter(|_| share(0, total).is_some());
        let pieces = pieces.map(|_| Arc::new(HeaderPieces::new(total)));
        let mut preconnected = preconnected.into_iter();
        let mut start = |number: usize| {
            let (server, image, stop) = (server.clone(), image.clone(), Arc::clone(&stop));
            let query = query.cloned().map(|query| BundleQuery {
                share: share(number, total),
                pieces: true,
                ..query
            });
            let pieces = pieces.clone();
            let preconnected = preconnected.next();
            let builder = thread::Builder::new().name("connection".to_owned());
            let thread = builder.spawn(move || {
                let slot = pieces.as_ref().map(|pieces| pieces.slot(number));
                let session = preconnected.and_then(|thread| thread.join().ok().flatten());
                let session = session.unwrap_or_else(|| Session::new(&server));
                session.connect().ok()?;
                let share = query.and_then(|query| {
                    receive_share(&session, &image, &query, buffer_limit, &stop, slot)
                });
                Some(ExtraConnection { session, share })
            });
            // If the thread cannot start, the pull works with one connection fewer.
            thread.ok()
        };
        let threads: Vec<_> = (1..total).map(&mut start).collect();
        for (number, _) in (1..).zip(&threads).filter(|(_, thread)| thread.is_none()) {
            // Dropping the slot signals that this piece will not arrive.
            drop(pieces.as_ref().map(|pieces| pieces.slot(number)));
        }
        Self {
            threads,
            stop,
            pieces,
        }
    }

    /// Returns the pieces of the header that arrive over these connections.
    pub(super) fn pieces(&self) -> Option<&HeaderPieces> {
        self.pieces.as_deref()
    }

    /// Returns the number of extra connections.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Stops the buffering of shares, and returns the threads. The caller joins a thread to get the
    /// connection of this thread.
    pub(super) fn into_threads(mut self) -> Vec<Option<JoinHandle<Option<ExtraConnection>>>> {
        std::mem::take(&mut self.threads)
    }
}

impl Drop for ExtraConnections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the share of connection `number` among `total` connections. Returns `None` if there is
/// only one connection, or if the protocol does not allow so many shares.
pub(super) fn share(number: usize, total: usize) -> Option<api::Share> {
    let total = u16::try_from(total).ok();
    let total = total.filter(|total| (2..=api::MAX_SHARES).contains(total))?;
    Some(api::Share(u16::try_from(number).ok()?, total))
}

/// Requests a share of the bundle, and buffers up to `limit` bytes of it. Returns `None` if the
/// server does not support shares and sends the whole bundle.
fn receive_share(
    session: &Session,
    image: &Reference,
    query: &BundleQuery,
    limit: usize,
    stop: &AtomicBool,
    slot: Option<PieceSlot<'_>>,
) -> Option<ShareStream> {
    let share = query.share?;
    let Ok(BundleResponse::Bundle { etag, mut body }) = request_bundle(session, image, query)
    else {
        return None;
    };
    let mut bytes = [0; PRELUDE];
    body.read_exact(&mut bytes).ok()?;
    let prelude = Prelude::decode(&bytes).ok()?;
    if !prelude.continued {
        return None;
    }
    if prelude.piece {
        let piece = header::read_piece(&mut body, &prelude, share).ok()?;
        if let Some(slot) = slot {
            slot.put(&etag, &prelude, piece);
        }
    }
    let mut buffered = header::without_piece(&prelude).to_vec();
    let mut buffer = vec![0; READ_SIZE];
    while buffered.len() < limit && !stop.load(Ordering::Relaxed) {
        // After a read error, the worker later requests the missing frames again.
        match body.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => buffered.extend_from_slice(&buffer[..read]),
        }
    }
    Some(ShareStream {
        etag,
        prelude,
        buffered,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_need_at_least_two_and_at_most_the_maximum_of_connections() {
        assert!(share(0, 1).is_none());
        assert_eq!(share(1, 2), Some(api::Share(1, 2)));
        let max = usize::from(api::MAX_SHARES);
        assert!(share(0, max).is_some());
        assert!(share(0, max + 1).is_none());
    }
}
