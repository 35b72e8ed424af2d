//! Reports the state of the daemon to systemd: one datagram per state change, as in sd_notify(3).
//!
//! The crate `sd-notify` 0.5 could replace about 40 lines of this module. But `sd-notify` reads the
//! environment at each call, and its socket blocks while systemd does not read.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::config::environment::NotifySettings;

/// A state of the daemon that pierhead reports to systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// pierhead is starting, and the start may take up to this duration from now on.
    Starting(Duration),
    /// pierhead serves clients now.
    Ready,
    /// pierhead is shutting down.
    Stopping,
    /// A keep-alive message for the watchdog of systemd.
    Alive,
}

impl State {
    fn text(self) -> Cow<'static, str> {
        match self {
            Self::Starting(timeout) => {
                let timeout = timeout.as_micros();
                format!("EXTEND_TIMEOUT_USEC={timeout}\nSTATUS=waiting for network.interface")
                    .into()
            }
            Self::Ready => "READY=1\nSTATUS=serving".into(),
            Self::Stopping => "STOPPING=1\nSTATUS=shutting down".into(),
            Self::Alive => "WATCHDOG=1".into(),
        }
    }
}

/// The connection to the service manager. Without a service manager, the functions of this type do
/// nothing.
pub(crate) struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the socket that the service manager has named. Logs a failure and continues:
    /// pierhead serves clients without systemd, too.
    pub(crate) fn connect(settings: &NotifySettings) -> Self {
        let socket = settings.socket.as_deref().and_then(|name| {
            connect(name)
                .inspect_err(|error| {
                    tracing::warn!(%error, ?name, "cannot connect to the service manager (NOTIFY_SOCKET)");
                })
                .ok()
        });
        Self {
            socket,
            watchdog: settings.watchdog,
        }
    }

    /// Sends the state to the service manager. Never blocks: if the service manager does not read,
    /// the message is lost.
    pub(crate) fn notify(&self, state: State) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(state.text().as_bytes())
        {
            tracing::warn!(%error, ?state, "cannot send the state to the service manager");
        }
    }

    /// Sends keep-alives at twice the rate that the watchdog needs. The keep-alives are sent by the
    /// threads that serve clients, so that systemd restarts pierhead when these threads hang.
    /// Without a watchdog, the function returns immediately.
    pub(crate) async fn send_keepalives(self: Arc<Self>) {
        let (Some(_), Some(timeout)) = (&self.socket, self.watchdog) else {
            return;
        };
        let mut ticks = tokio::time::interval(timeout / 2);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.notify(State::Alive);
        }
    }
}

fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    // In the name of an abstract socket, a leading @ stands for a zero byte.
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

    fn fake_manager() -> (tempfile::TempDir, UnixDatagram, NotifySettings) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let settings = NotifySettings {
            socket: Some(path.into()),
            watchdog: Some(Duration::from_millis(2)),
        };
        (folder, socket, settings)
    }

    fn received(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn the_service_manager_receives_each_state() {
        let (_folder, manager, settings) = fake_manager();
        let service_manager = ServiceManager::connect(&settings);
        service_manager.notify(State::Starting(Duration::from_secs(7)));
        let timeout = "EXTEND_TIMEOUT_USEC=7000000";
        assert!(received(&manager).lines().any(|line| line == timeout));
        service_manager.notify(State::Ready);
        assert!(received(&manager).lines().any(|line| line == "READY=1"));
        service_manager.notify(State::Stopping);
        assert!(received(&manager).lines().any(|line| line == "STOPPING=1"));
    }

    #[test]
    fn a_name_with_an_at_sign_is_an_abstract_socket() {
        let name = format!("pierhead-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let service_manager = ServiceManager::connect(&NotifySettings {
            socket: Some(format!("@{name}").into()),
            watchdog: None,
        });
        service_manager.notify(State::Alive);
        assert_eq!(received(&manager), "WATCHDOG=1");
    }

    #[tokio::test]
    async fn keepalives_repeat_until_the_task_ends() {
        let (_folder, manager, settings) = fake_manager();
        let keepalives =
            tokio::spawn(Arc::new(ServiceManager::connect(&settings)).send_keepalives());
        let messages =
            tokio::task::spawn_blocking(move || [received(&manager), received(&manager)]);
        assert_eq!(messages.await.unwrap(), ["WATCHDOG=1", "WATCHDOG=1"]);
        keepalives.abort();
    }

    #[tokio::test]
    async fn without_a_service_manager_nothing_is_sent() {
        let service_manager = Arc::new(ServiceManager::connect(&NotifySettings::default()));
        service_manager.notify(State::Ready);
        service_manager.send_keepalives().await;
    }

    #[test]
    fn a_service_manager_that_ended_causes_no_error() {
        let (folder, manager, settings) = fake_manager();
        let service_manager = ServiceManager::connect(&settings);
        drop((folder, manager));
        service_manager.notify(State::Ready);
        ServiceManager::connect(&settings).notify(State::Ready);
    }
}
