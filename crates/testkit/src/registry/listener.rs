//! The listeners of the fake registry, which can be stopped and started again on the same port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use super::log::Role;
use super::shared::Shared;
use super::wire;

pub(super) struct Listener {
    /// A socket that is bound but never listens. This socket reserves the port while the registry
    /// refuses connections.
    reserve: Socket,
    role: Role,
    shared: Arc<Shared>,
    running: Mutex<Option<Running>>,
}

struct Running {
    /// Dropping this sender stops the listener.
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<()>,
}

impl Listener {
    /// Reserves the port, without listening. [`start`](Self::start) begins to listen.
    pub(super) fn bind(addr: SocketAddr, role: Role, shared: Arc<Shared>) -> Self {
        let reserve = bound(addr).unwrap_or_else(|error| panic!("cannot bind {addr}: {error}"));
        Self {
            reserve,
            role,
            shared,
            running: Mutex::new(None),
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        let addr = self
            .reserve
            .local_addr()
            .ok()
            .and_then(|addr| addr.as_socket());
        addr.expect("a bound socket has an address")
    }

    pub(super) async fn start(&self) {
        self.stop().await;
        let socket = listening(self.addr()).await.expect("the port is reserved");
        let listener = TcpListener::from_std(socket.into()).expect("inside a tokio runtime");
        let (stop, stopped) = oneshot::channel();
        let accepting = tokio::spawn(accept(
            listener,
            self.role,
            Arc::clone(&self.shared),
            stopped,
        ));
        *self.running.lock() = Some(Running { stop, accepting });
    }

    /// Closes the port and all connections.
    pub(super) async fn stop(&self) {
        let running = self.running.lock().take();
        if let Some(Running { stop, accepting }) = running {
            drop(stop);
            accepting.await.expect("accepting does not panic");
        }
    }
}

fn bound(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    Ok(socket)
}

/// Listens at `addr`, and retries while the port is in use. The port can be in use for a moment,
/// because a process that another test starts has a copy of the previous socket between `fork` and
/// `exec`.
async fn listening(addr: SocketAddr) -> io::Result<Socket> {
    let mut tries = 0;
    loop {
        let socket = bound(addr).and_then(|socket| socket.listen(1024).map(|()| socket));
        match socket {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < 500 => {
                tries += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            socket => return socket,
        }
    }
}

async fn accept(
    listener: TcpListener,
    role: Role,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            accepted = listener.accept() => if let Ok((stream, peer)) = accepted {
                connections.spawn(wire::serve(Arc::clone(&shared), role, stream, peer));
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}
