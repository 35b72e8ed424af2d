//! Opens the listening sockets: binds the addresses for clients and the address of the admin
//! listener.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

use crate::cli::exit_code::{ExitError, ExitReason};
use crate::config::Config;

/// Length of the kernel's queue of new connections. docker 20 and podman open one connection per
/// request, so the queue must hold a burst of requests.
const BACKLOG: u32 = 4096;

/// Binds one listening socket per address.
pub(super) fn bind_all(addresses: &[SocketAddr]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in addresses {
        // Without IPV6_V6ONLY, [::]:5000 also accepts IPv4, and binding 0.0.0.0:5000 fails.
        let only_v6 = addresses
            .iter()
            .any(|other| other.is_ipv4() && other.port() == address.port());
        listeners.push(bind(*address, only_v6)?);
    }
    Ok(listeners)
}

pub(super) fn bind(address: SocketAddr, only_v6: bool) -> anyhow::Result<TcpListener> {
    open(address, only_v6).map_err(|error| {
        let (exit, hint) = exit_code_and_hint(error.kind());
        let message = format!("cannot listen on {address}{hint}");
        ExitError::with_source(exit, message, error).into()
    })
}

/// Returns the exit code of a failed bind, and a hint with the fix.
fn exit_code_and_hint(kind: ErrorKind) -> (ExitReason, &'static str) {
    match kind {
        ErrorKind::AddrInUse => (
            ExitReason::InUse,
            " (another pierhead or registry? `ss -ltnp` names it; see --listen and --admin)",
        ),
        ErrorKind::AddrNotAvailable => (
            ExitReason::NoInterface,
            " (no interface of this host has this address; `ip -br address` lists all)",
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

/// Binds the admin listener. A configured admin address must be free. But if another process, such
/// as a second pierhead, uses the default address, pierhead starts without an admin listener, since
/// pulls matter more than metrics.
pub(super) fn bind_admin(config: &Config) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = config.admin else {
        return Ok(None);
    };
    bind_admin_at(address, !config.key_locations.is_set("admin"))
}

fn bind_admin_at(address: SocketAddr, is_default: bool) -> anyhow::Result<Option<TcpListener>> {
    match bind(address, false) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) if is_default && is_in_use(&error) => {
            tracing::warn!(
                "{address} is in use: pierhead starts without an admin listener, so without metrics and `pierhead cache`; \
                 set another address with --admin"
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
    use crate::cli::exit_code::reason_of;

    #[tokio::test]
    async fn only_the_default_admin_address_may_be_in_use() {
        let other = bind("127.0.0.1:0".parse().expect("an address"), false);
        let other = other.expect("a listener");
        let address = other.local_addr().expect("an address");
        assert!(matches!(bind_admin_at(address, true), Ok(None)));
        let error = bind_admin_at(address, false).expect_err("in use");
        assert_eq!(reason_of(&error), ExitReason::InUse, "{error:#}");
    }

    #[test]
    fn each_kind_of_bind_error_has_its_exit_code() {
        for (kind, exit) in [
            (ErrorKind::AddrInUse, ExitReason::InUse),
            (ErrorKind::AddrNotAvailable, ExitReason::NoInterface),
            (ErrorKind::PermissionDenied, ExitReason::PermissionDenied),
            (ErrorKind::Other, ExitReason::Failed),
        ] {
            assert_eq!(exit_code_and_hint(kind).0, exit, "{kind}");
        }
    }
}
