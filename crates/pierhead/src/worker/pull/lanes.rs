//! The shares of a bundle over connections of their own, asked for together with its header and kept until that is here.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use pierhead_bundle::api::{self, Ask};
use pierhead_bundle::format::{PRELUDE, Prelude};
use pierhead_oci::Reference;

use super::super::http::{Body, Server};
use super::super::session::Session;
use super::ask::{self, Answered};
use super::early::Connecting;
use super::header::{self, Pieces, Place};

/// Of all shares together, before the header is here, which takes three or four round trips more than they do; the threads
/// that apply have nothing yet. What is sent beyond waits in the system's buffers, and its sender with it: 4 MiB cost a fresh
/// pull of 24 MB over 150 ms another 0.3 s.
const SPOOL: usize = 14 << 20;
/// Read from a socket at a time.
const PIECE: usize = 32 << 10;

/// A connection beside the first.
pub(super) struct Lane {
    pub(super) session: Session,
    /// `None` where it was sent something else, or nothing was asked.
    pub(super) share: Option<Share>,
}

/// A share that is being received.
pub(super) struct Share {
    pub(super) etag: String,
    pub(super) prelude: Prelude,
    /// What was read so far, from the prelude on.
    pub(super) spool: Vec<u8>,
    /// What was not.
    pub(super) body: Body,
}

/// Lanes that are connecting, or receiving. Dropped, they end.
#[derive(Default)]
pub(super) struct Lanes {
    /// `None`: it could not be begun.
    threads: Vec<Option<JoinHandle<Option<Lane>>>>,
    /// The header is here, or nobody wants them: they are not to keep any more.
    over: Arc<AtomicBool>,
    /// Of the header, where they were asked for some.
    pieces: Option<Arc<Pieces>>,
}

impl Lanes {
    /// Connects `among - 1` times, each in a thread of its own and those of `early` first, and asks over each for its
    /// share of what `ask` says, if there is something to ask.
    pub(super) fn open(
        server: &Server,
        image: &Reference,
        ask: Option<&Ask>,
        among: usize,
        early: Vec<Connecting>,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let spool = SPOOL / among.max(1);
        let pieces = ask.filter(|_| share(0, among).is_some());
        let pieces = pieces.map(|_| Arc::new(Pieces::new(among)));
        let mut early = early.into_iter();
        let mut begin = |nth: usize| {
            let (server, image, over) = (server.clone(), image.clone(), Arc::clone(&over));
            let ask = ask.cloned().map(|ask| Ask {
                share: share(nth, among),
                pieces: true,
                ..ask
            });
            let pieces = pieces.clone();
            let early = early.next();
            let builder = thread::Builder::new().name("lane".to_owned());
            // One less is slower, no more.
            let begun = builder.spawn(move || {
                let place = pieces.as_ref().map(|pieces| pieces.place(nth));
                let session = early.and_then(|early| early.join().ok().flatten());
                let session = session.unwrap_or_else(|| Session::new(&server));
                session.connect().ok()?;
                let share =
                    ask.and_then(|ask| receive(&session, &image, &ask, spool, &over, place));
                Some(Lane { session, share })
            });
            begun.ok()
        };
        let threads: Vec<_> = (1..among).map(&mut begin).collect();
        for (nth, _) in (1..).zip(&threads).filter(|(_, thread)| thread.is_none()) {
            drop(pieces.as_ref().map(|pieces| pieces.place(nth)));
        }
        Self {
            threads,
            over,
            pieces,
        }
    }

    /// Of the header, as far as they come beside its first.
    pub(super) fn pieces(&self) -> Option<&Pieces> {
        self.pieces.as_deref()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.threads.len()
    }

    /// To be waited for, each by whoever goes on with it. They end soon.
    pub(super) fn into_threads(mut self) -> Vec<Option<JoinHandle<Option<Lane>>>> {
        std::mem::take(&mut self.threads)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Of so many; none where there is one connection only, or more than there may be shares.
pub(super) fn share(nth: usize, among: usize) -> Option<api::Share> {
    let of = u16::try_from(among).ok();
    let of = of.filter(|of| (2..=api::MAX_SHARES).contains(of))?;
    Some(api::Share(u16::try_from(nth).ok()?, of))
}

/// What comes until there is no room for it. A server that knows no shares sends its whole bundle: that is dropped.
fn receive(
    session: &Session,
    image: &Reference,
    ask: &Ask,
    room: usize,
    over: &AtomicBool,
    place: Option<Place<'_>>,
) -> Option<Share> {
    let share = ask.share?;
    let Ok(Answered::Bundle { etag, mut body }) = ask::once(session, image, ask) else {
        return None;
    };
    let mut bytes = [0; PRELUDE];
    body.read_exact(&mut bytes).ok()?;
    let prelude = Prelude::decode(&bytes).ok()?;
    if !prelude.continued {
        return None;
    }
    if prelude.piece {
        let piece = header::piece(&mut body, &prelude, share).ok()?;
        if let Some(place) = place {
            place.put(&etag, &prelude, piece);
        }
    }
    let mut spool = header::stripped(&prelude).to_vec();
    let mut piece = vec![0; PIECE];
    while spool.len() < room && !over.load(Ordering::Relaxed) {
        // What was cut is asked for again from where it was.
        match body.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(read) => spool.extend_from_slice(&piece[..read]),
        }
    }
    Some(Share {
        etag,
        prelude,
        spool,
        body,
    })
}
