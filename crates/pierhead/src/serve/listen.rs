//! Listening sockets: of clients, and of the admin listener.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::config::Config;
use crate::exit_code::{ExitError, ExitReason};

/// docker 20 and podman open a connection a request: a burst must fit into the queue.
const BACKLOG: u32 = 4096;

/// One for each address.
pub(super) fn bind_all(addresses: &[SocketAddr]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        // Else [::]:5000 takes IPv4, too, and 0.0.0.0:5000 beside it cannot be had.
        let only_v6 = addresses
            .iter()
            .any(|other| other.is_ipv4() && other.port() == address.port());
        listeners.push(bind(*address, only_v6)?);
    }
    Ok(listeners)
}

pub(super) fn bind(address: SocketAddr, only_v6: bool) -> anyhow::Result<TcpListener> {
    open(address, only_v6).map_err(|error| {
        let (exit, hint) = blame(error.kind());
        let message = format!("cannot listen on {address}{hint}");
        ExitError::with_source(exit, message, error).into()
    })
}

/// Whose turn it is, and the fix.
fn blame(kind: ErrorKind) -> (ExitReason, &'static str) {
    match kind {
        ErrorKind::AddrInUse => (
            ExitReason::InUse,
            " (another pierhead or registry? `ss -ltnp` names it; see --listen and --admin)",
        ),
        ErrorKind::AddrNotAvailable => (
            ExitReason::NoInterface,
            " (no interface of this machine has it; `ip -br address` shows all)",
        ),
        ErrorKind::PermissionDenied => (
            ExitReason::PermissionDenied,
            " (ports below 1024 need root or CAP_NET_BIND_SERVICE)",
        ),
        _ => (ExitReason::Failed, ""),
    }
}

fn open(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() && only_v6 {
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// An address that was asked for must be had. The default one may belong to another pierhead on this machine: pulls
/// are worth more than metrics, so this one then serves without.
pub(super) fn bind_admin(config: &Config) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = config.admin else {
        return Ok(None);
    };
    match bind(address, false) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if address == Config::DEFAULT_ADMIN && is_in_use(&error) => {
            tracing::warn!(
                "no admin listener, so no metrics and no `pierhead cache` for this instance: \
                 {address} is in use; give it an address of its own with --admin"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn is_in_use(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == ErrorKind::AddrInUse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_code() {
        for (kind, exit) in [
            (ErrorKind::AddrInUse, ExitReason::InUse),
            (ErrorKind::AddrNotAvailable, ExitReason::NoInterface),
            (ErrorKind::PermissionDenied, ExitReason::PermissionDenied),
            (ErrorKind::Other, ExitReason::Failed),
        ] {
            assert_eq!(blame(kind).0, exit, "{kind}");
        }
    }
}
