//! Opens extra connections of a pull while the first connect is in progress. When the first connect
//! ends, the round-trip time is known, and the extra connections are already open.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::http::Session;
use crate::{Error, Server};

/// Minimum round-trip time at which a pull uses several connections. At a shorter round-trip time,
/// one connection uses the whole bandwidth.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(10);
/// A pull uses one connection per this much round-trip time: for example, 16 connections at a
/// round-trip time of 40 ms. A TCP connection starts with a window of 14 KB, and doubles the window
/// with each round trip. So with a longer round trip, a pull needs more connections at the start.
const ROUND_TRIP_PER_CONNECTION: Duration = Duration::from_micros(2500);
/// Minimum and maximum number of connections for a round trip of at least [`LONG_ROUND_TRIP`].
const CONNECTION_BOUNDS: (usize, usize) = (8, 64);
/// When the first connection has not connected within this time, the server is probably
/// unreachable, and no further connection is opened.
const MAX_PRECONNECT_TIME: Duration = Duration::from_secs(1);

/// A thread that opens the connection of a session. The thread returns `None` if the connect
/// failed.
pub(super) type Connecting = JoinHandle<Option<Session>>;

/// Opens the connection of the session `first`. Returns the total number of connections to use, and
/// the extra connections that were opened meanwhile, which may be more than needed. `wanted` is the
/// total number that the user chose.
///
/// # Errors
/// The same errors as from [`Session::connect`].
pub(super) fn connect(
    first: &Session,
    server: &Server,
    wanted: Option<usize>,
) -> Result<(usize, Vec<Connecting>), Error> {
    open_while_connecting(wanted, || first.connect(), || start_connect(server.clone()))
}

/// Returns the total number of connections to use: `wanted`, or else a number that depends on the
/// round-trip time.
fn connection_count(wanted: Option<usize>, round_trip: Duration) -> usize {
    let quotient = round_trip.as_micros() / ROUND_TRIP_PER_CONNECTION.as_micros();
    let many = usize::try_from(quotient).unwrap_or(usize::MAX);
    let many = many.clamp(CONNECTION_BOUNDS.0, CONNECTION_BOUNDS.1);
    wanted.unwrap_or(if round_trip < LONG_ROUND_TRIP {
        1
    } else {
        many
    })
}

/// Runs the function `first`. Meanwhile, another thread calls `open` for each extra connection,
/// until `open` returns `None`.
fn open_while_connecting<T: Send>(
    wanted: Option<usize>,
    first: impl FnOnce() -> Result<Duration, Error>,
    open: impl Fn() -> Option<T> + Send,
) -> Result<(usize, Vec<T>), Error> {
    let (connected, waits) = mpsc::channel::<()>();
    let (round_trip, opened) = thread::scope(|scope| {
        let extra = scope.spawn(move || {
            let mut opened = Vec::new();
            // A connect that has taken this long may take as long again. So the thread doubles its
            // estimate, and all connections are opened within half a round trip.
            let (mut wait, mut waited) = (LONG_ROUND_TRIP, Duration::ZERO);
            while waited < MAX_PRECONNECT_TIME
                && waits.recv_timeout(wait) == Err(RecvTimeoutError::Timeout)
            {
                waited += wait;
                wait = waited;
                let total = connection_count(wanted, waited * 2);
                while opened.len() + 1 < total {
                    match open() {
                        Some(connection) => opened.push(connection),
                        None => return opened,
                    }
                }
            }
            opened
        });
        let round_trip = first();
        drop(connected);
        (round_trip, extra.join().unwrap_or_default())
    });
    Ok((connection_count(wanted, round_trip?), opened))
}

fn start_connect(server: Server) -> Option<Connecting> {
    let connect = move || {
        let session = Session::new(&server);
        session.connect().ok()?;
        Some(session)
    };
    let builder = thread::Builder::new().name("connect".to_owned());
    builder.spawn(connect).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Keeps the first connect in progress until `until` other connections are open. The opening of
    /// connection number `limit` fails.
    fn connected(wanted: Option<usize>, until: usize, limit: usize) -> (usize, Vec<usize>) {
        let (opens, opened) = mpsc::channel();
        let numbers = AtomicUsize::new(0);
        let first = || {
            (0..until).for_each(|_| opened.recv().expect("another one is opened"));
            Ok(Duration::from_millis(150))
        };
        let open = move || {
            let number = numbers.fetch_add(1, Ordering::Relaxed);
            let _ = opens.send(());
            (number + 1 < limit).then_some(number)
        };
        open_while_connecting(wanted, first, open).expect("it connects")
    }

    #[test]
    fn extra_connections_open_while_the_first_connect_is_slow() {
        assert_eq!(connected(Some(5), 4, 100), (5, vec![0, 1, 2, 3]));
        let (total, opened) = connected(None, 7, 100);
        assert_eq!(total, 60, "150 ms in intervals of 2.5 ms");
        assert!((7..=63).contains(&opened.len()), "{opened:?}");
    }

    #[test]
    fn open_connections_remain_when_another_fails_to_open() {
        assert_eq!(connected(Some(5), 3, 3), (5, vec![0, 1]));
    }

    #[test]
    fn the_error_of_the_first_connect_is_returned() {
        let refused = || Err(Error::NoBundle("refused".to_owned()));
        let result = open_while_connecting(Some(3), refused, || Some(()));
        assert!(matches!(result, Err(Error::NoBundle(reason)) if reason == "refused"));
    }

    #[test]
    fn a_pull_over_one_connection_opens_no_other() {
        assert_eq!(connected(Some(1), 0, 100), (1, vec![]));
    }

    #[test]
    fn the_number_of_connections_grows_with_the_round_trip_within_bounds() {
        let count = |millis| connection_count(None, Duration::from_millis(millis));
        assert_eq!([9, 10, 50, 150, 1000].map(count), [1, 8, 20, 60, 64]);
        assert_eq!(connection_count(Some(3), Duration::from_secs(1)), 3);
    }
}
