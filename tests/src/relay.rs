//! A TCP relay between a client and a server, for tests. A test can change the server during a run.
//! The relay records the time and status of each response.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Result;
use parking_lot::{Mutex, MutexGuard};

/// A listener that forwards connections to a target. Dropping it closes the listener. Open
/// connections go on.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<SocketAddr>,
    seen: Mutex<ResponseStats>,
    /// Whether connections begin with `CONNECT host:port`, as to an HTTP proxy. The target is the
    /// same for all connections.
    is_proxy: bool,
    closed: AtomicBool,
}

/// Statistics of the responses since the last call of [`Relay::take`].
#[derive(Clone, Debug, Default)]
pub struct ResponseStats {
    /// Maximum time from a request to the first byte of its response, or to the cancellation of the
    /// request.
    pub slowest: Duration,
    /// The status of each response.
    pub statuses: Vec<u16>,
}

impl Relay {
    /// Starts a relay to one address, which [`Relay::set_target`] can change.
    pub fn to(target: SocketAddr) -> Result<Self> {
        Self::start(target, false)
    }

    /// Starts an HTTP proxy that forwards every `CONNECT` to one address.
    pub fn proxy_to(target: SocketAddr) -> Result<Self> {
        Self::start(target, true)
    }

    fn start(target: SocketAddr, is_proxy: bool) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            seen: Mutex::default(),
            is_proxy,
            closed: AtomicBool::new(false),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Ok(Self {
            address,
            shared,
            accepting: Some(accepting),
        })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the target of new connections.
    pub fn set_target(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
    }

    /// Returns the statistics since the last call, and resets them.
    pub fn take(&self) -> ResponseStats {
        std::mem::take(&mut *lock(&self.shared.seen))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts connections, by a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        let shared = Arc::clone(shared);
        // A failed connection is handled by its client and its server.
        thread::spawn(move || {
            let _ = connection(client, &shared);
        });
    }
}

fn connection(mut client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    if shared.is_proxy {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    }
    let target = *lock(&shared.target);
    // The client sees the failure as the close of the connection.
    let server = TcpStream::connect(target)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let requested = Arc::new(Mutex::new(None));
    let back = thread::spawn({
        let (from, to) = (server.try_clone()?, client.try_clone()?);
        let (requested, shared) = (Arc::clone(&requested), Arc::clone(shared));
        move || {
            pump(from, to, |bytes| {
                if let Some(since) = lock(&requested).take() {
                    shared.record_response(since, bytes);
                }
            });
            if let Some(since) = lock(&requested).take() {
                shared.record_response(since, b"");
            }
        }
    });
    pump(client, server, |_| {
        lock(&requested).get_or_insert_with(Instant::now);
    });
    let _ = back.join();
    Ok(())
}

impl Shared {
    fn record_response(&self, since: Instant, bytes: &[u8]) {
        let mut seen = lock(&self.seen);
        seen.slowest = seen.slowest.max(since.elapsed());
        let status: Option<u16> = bytes
            .strip_prefix(b"HTTP/1.1 ")
            .and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok());
        seen.statuses.extend(status);
    }
}

/// Copies bytes until either side closes. The relay passes an orderly close on to the other side.
fn pump(mut from: TcpStream, mut to: TcpStream, mut saw: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        saw(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
