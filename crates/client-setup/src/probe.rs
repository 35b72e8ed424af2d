//! Checks whether a registry is reachable at an address. If there is no registry, `pierhead setup`
//! prints a warning.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::address::Address;

/// Timeout of one connect and of one read when setup checks the address of pierhead. pierhead is
/// usually near, so a server that takes longer is worth the warning.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why there is no registry at an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// No server accepts the connection.
    #[error("no server accepts connections ({0})")]
    NoConnection(io::Error),
    /// The server accepts connections and sends no response.
    #[error("no response from the server ({0})")]
    NoResponse(io::Error),
    /// The response is not HTTP.
    #[error("there is a server that does not speak HTTP")]
    NotHttp,
    /// The response to `GET /v2/` has status 404.
    #[error("there is a server that is no registry (404)")]
    NotARegistry,
}

/// Sends `GET /v2/` over plain HTTP. If the address uses TLS, the call only connects, since the
/// client itself will verify the certificate. The call blocks for at most 1 s for each IP address
/// of the host, and for 1 s for the response.
///
/// # Errors
/// The error is the reason why no registry is reachable.
pub fn probe(address: &Address) -> Result<(), Unreachable> {
    let targets = (address.host(), address.port()).to_socket_addrs();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for target in targets.map_err(Unreachable::NoConnection)? {
        match TcpStream::connect_timeout(&target, PROBE_TIMEOUT) {
            Ok(_) if address.is_tls() => return Ok(()),
            Ok(stream) => return check_registry(stream, address),
            Err(error) => last = error,
        }
    }
    Err(Unreachable::NoConnection(last))
}

/// Checks the status of the response. A server that refuses this client with 401 or 403 also counts
/// as a registry.
fn check_registry(mut stream: TcpStream, address: &Address) -> Result<(), Unreachable> {
    let status = request_status(&mut stream, address.authority());
    let status = status.map_err(Unreachable::NoResponse)?;
    match String::from_utf8_lossy(&status).split_once(' ') {
        Some((http, code)) if http.starts_with("HTTP/") => match code {
            "404" => Err(Unreachable::NotARegistry),
            _ => Ok(()),
        },
        _ => Err(Unreachable::NotHttp),
    }
}

/// Returns the first 12 bytes of the response, such as `HTTP/1.1 200`.
fn request_status(stream: &mut TcpStream, host: &str) -> io::Result<[u8; 12]> {
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    // The request is sent in one write, because a server may respond to the request line and close
    // the connection before a second write.
    let request = format!("GET /v2/ HTTP/1.0\r\nhost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut status = [0; 12];
    stream.read_exact(&mut status)?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Starts a server that sends `response` to one request. Returns its address.
    fn server(response: &'static str) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 256];
            let length = stream.read(&mut request).expect("a request");
            assert!(request[..length].starts_with(b"GET /v2/ HTTP/1.0\r\n"));
            stream.write_all(response.as_bytes()).expect("written");
        });
        Address::of_listener(address, false)
    }

    #[test]
    fn registries_and_other_servers_are_distinguished() {
        assert!(probe(&server("HTTP/1.1 200 OK\r\n\r\n")).is_ok());
        assert!(probe(&server("HTTP/1.1 401 Unauthorized\r\n\r\n")).is_ok());
        let found = probe(&server("HTTP/1.1 404 Not Found\r\n\r\n"));
        assert!(matches!(found, Err(Unreachable::NotARegistry)), "{found:?}");
        let found = probe(&server("SSH-2.0-OpenSSH_9.9\r\n"));
        assert!(matches!(found, Err(Unreachable::NotHttp)), "{found:?}");
        let found = probe(&server("HTTP"));
        assert!(
            matches!(found, Err(Unreachable::NoResponse(_))),
            "{found:?}"
        );
    }

    #[test]
    fn a_closed_port_is_no_registry() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        for tls in [false, true] {
            let found = probe(&Address::of_listener(address, tls));
            assert!(
                matches!(found, Err(Unreachable::NoConnection(_))),
                "{found:?}"
            );
        }
    }

    #[test]
    fn with_tls_a_connection_is_enough() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        assert!(probe(&Address::of_listener(address, true)).is_ok());
    }
}
