//! Connections beside the first that are begun while it takes long: by the time that its round trip is known they are there.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::super::Error;
use super::super::http::Server;
use super::super::session::Session;
use super::fetch::{self, FAR};

/// One that is being connected.
pub(super) type Connecting = JoinHandle<Option<Session>>;

/// A first round trip that takes longer is a server that does not answer.
const LONGEST: Duration = Duration::from_secs(1);

/// Connects `first`; how many connections the way is worth, and those beside the first that were begun meanwhile, maybe more
/// than that.
///
/// # Errors
/// Those of [`Session::connect`].
pub(super) fn connect(
    first: &Session,
    server: &Server,
    told: Option<usize>,
) -> Result<(usize, Vec<Connecting>), Error> {
    while_connecting(told, || first.connect(), || begin(server.clone()))
}

/// What `first` takes tells how many there are to be; `begin` is called meanwhile, until it cannot.
fn while_connecting<T: Send>(
    told: Option<usize>,
    first: impl FnOnce() -> Result<Duration, Error>,
    begin: impl Fn() -> Option<T> + Send,
) -> Result<(usize, Vec<T>), Error> {
    let (here, waits) = mpsc::channel::<()>();
    let (rtt, begun) = thread::scope(|scope| {
        let others = scope.spawn(move || {
            let mut begun = Vec::new();
            // What has taken so long may take as long again: doubling, all are begun within half a round trip.
            let (mut wait, mut waited) = (FAR, Duration::ZERO);
            while waited < LONGEST && waits.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                waited += wait;
                wait = waited;
                let among = fetch::connections(told, waited * 2);
                while begun.len() + 1 < among {
                    match begin() {
                        Some(one) => begun.push(one),
                        None => return begun,
                    }
                }
            }
            begun
        });
        let rtt = first();
        drop(here);
        (rtt, others.join().unwrap_or_default())
    });
    Ok((fetch::connections(told, rtt?), begun))
}

fn begin(server: Server) -> Option<Connecting> {
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
    use super::*;

    /// Connects for as long as it takes until so many others were begun; the last of `most` cannot be.
    fn connected(told: Option<usize>, until: usize, most: usize) -> (usize, Vec<usize>) {
        let (begins, begun) = mpsc::channel();
        let numbers = std::sync::atomic::AtomicUsize::new(0);
        let first = || {
            (0..until).for_each(|_| begun.recv().expect("another one is begun"));
            Ok(Duration::from_millis(150))
        };
        let begin = move || {
            let number = numbers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let _ = begins.send(());
            (number + 1 < most).then_some(number)
        };
        while_connecting(told, first, begin).expect("it connects")
    }

    #[test]
    fn others_are_begun_while_the_first_takes_long() {
        assert_eq!(connected(Some(5), 4, 100), (5, vec![0, 1, 2, 3]));
        let (among, begun) = connected(None, 7, 100);
        // As many as the way is worth, as far as it was known to be long by then.
        assert_eq!(among, 60);
        assert!((7..=63).contains(&begun.len()), "{begun:?}");
    }

    #[test]
    fn those_that_were_begun_stay_when_another_cannot_be() {
        assert_eq!(connected(Some(5), 3, 3), (5, vec![0, 1]));
    }

    #[test]
    fn where_the_first_cannot_connect_there_are_none() {
        let refused = || Err(Error::Said("refused".to_owned()));
        let result = while_connecting(Some(3), refused, || Some(()));
        assert!(matches!(result, Err(Error::Said(why)) if why == "refused"));
    }

    #[test]
    fn one_that_is_to_be_alone_stays_alone() {
        assert_eq!(connected(Some(1), 0, 100), (1, vec![]));
    }
}
