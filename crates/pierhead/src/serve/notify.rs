//! Tells systemd how it goes: one datagram a change, as sd_notify(3) describes them.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::environment::Supervisor;

/// What the service manager is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It starts, and that may take so long from now on.
    Starting(Duration),
    /// Clients are served.
    Ready,
    /// It ends, and drains before.
    Stopping,
    /// It is alive.
    Alive,
}

impl State {
    fn text(self) -> Cow<'static, str> {
        match self {
            Self::Starting(within) => {
                let more = within.as_micros();
                format!("EXTEND_TIMEOUT_USEC={more}\nSTATUS=waiting for network.interface").into()
            }
            Self::Ready => "READY=1\nSTATUS=serving".into(),
            Self::Stopping => "STOPPING=1\nSTATUS=draining".into(),
            Self::Alive => "WATCHDOG=1".into(),
        }
    }
}

/// The service manager, if there is one that wants to know.
pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Notify {
    /// Connects to the socket that the environment names.
    ///
    /// A manager that cannot be reached is no reason not to serve: it is said in the log.
    pub(crate) fn new(supervisor: &Supervisor) -> Self {
        let socket = supervisor.socket.as_deref().and_then(|name| {
            connect(name)
                .inspect_err(|error| {
                    tracing::warn!(%error, ?name, "cannot tell the service manager (NOTIFY_SOCKET)");
                })
                .ok()
        });
        Self {
            socket,
            watchdog: supervisor.watchdog,
        }
    }

    /// Tells it. Never waits: a manager that does not read loses the message.
    pub(crate) fn tell(&self, state: State) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(state.text().as_bytes())
        {
            tracing::warn!(%error, ?state, "the service manager did not take what it was told");
        }
    }

    /// Says that it is alive, twice in the time after which the manager would believe otherwise. It does so from
    /// the threads that serve clients: when these hang, it falls silent. Ends at once without a watchdog.
    pub(crate) async fn live(self: Arc<Self>) {
        let (Some(_), Some(limit)) = (&self.socket, self.watchdog) else {
            return;
        };
        let mut ticks = tokio::time::interval(limit / 2);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.tell(State::Alive);
        }
    }
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    // A leading @ stands for the zero byte of an abstract name.
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager() -> (tempfile::TempDir, UnixDatagram, Supervisor) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor {
            socket: Some(path.into()),
            watchdog: Some(Duration::from_millis(2)),
        };
        (folder, socket, supervisor)
    }

    fn heard(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn a_manager_hears_each_state() {
        let (_folder, manager, supervisor) = manager();
        let notify = Notify::new(&supervisor);
        notify.tell(State::Starting(Duration::from_secs(7)));
        let waits = "EXTEND_TIMEOUT_USEC=7000000";
        assert!(heard(&manager).lines().any(|line| line == waits));
        notify.tell(State::Ready);
        assert!(heard(&manager).lines().any(|line| line == "READY=1"));
        notify.tell(State::Stopping);
        assert!(heard(&manager).lines().any(|line| line == "STOPPING=1"));
    }

    #[test]
    fn an_abstract_name_is_no_path() {
        let name = format!("pierhead-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let notify = Notify::new(&Supervisor {
            socket: Some(format!("@{name}").into()),
            watchdog: None,
        });
        notify.tell(State::Alive);
        assert_eq!(heard(&manager), "WATCHDOG=1");
    }

    #[tokio::test]
    async fn a_watchdog_is_fed_again_and_again() {
        let (_folder, manager, supervisor) = manager();
        let feeding = tokio::spawn(Arc::new(Notify::new(&supervisor)).live());
        let fed = tokio::task::spawn_blocking(move || [heard(&manager), heard(&manager)]);
        assert_eq!(fed.await.unwrap(), ["WATCHDOG=1", "WATCHDOG=1"]);
        feeding.abort();
    }

    #[tokio::test]
    async fn nobody_is_told_without_a_manager() {
        let alone = Arc::new(Notify::new(&Supervisor::default()));
        alone.tell(State::Ready);
        alone.live().await;
    }

    #[test]
    fn a_manager_that_is_gone_stops_nothing() {
        let (folder, manager, supervisor) = manager();
        let notify = Notify::new(&supervisor);
        drop((folder, manager));
        notify.tell(State::Ready);
        Notify::new(&supervisor).tell(State::Ready);
    }
}
