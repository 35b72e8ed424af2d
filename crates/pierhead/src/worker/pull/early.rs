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
                    match begin(server.clone()) {
                        Some(one) => begun.push(one),
                        None => return begun,
                    }
                }
            }
            begun
        });
        let rtt = first.connect();
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
