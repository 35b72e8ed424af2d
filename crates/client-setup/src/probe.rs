//! Checks whether a registry is reachable at an address. If there is no registry, `pierhead setup`
//! prints a warning.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, ClientConfig, ClientConnection, StreamOwned};
use rustls_pki_types::ServerName;

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
    /// The server closes the connection of a client that speaks plain HTTP.
    #[error(
        "the server closed the connection, as a server does that expects TLS (then pass --address \
         https://…),"
    )]
    Closed,
    /// The TLS handshake failed.
    #[error("TLS failed ({0})")]
    Tls(io::Error),
    /// The server speaks plain HTTP, and the address has `https://`.
    #[error("the server speaks http, not https,")]
    NoTls,
    /// The response is not HTTP.
    #[error("there is a server that does not speak HTTP")]
    NotHttp,
    /// The response to `GET /v2/` has status 404.
    #[error("there is a server that is no registry (404)")]
    NotARegistry,
}

/// Sends `GET /v2/`. `tls` returns the TLS settings with the authorities that the client trusts; the
/// call needs them only if the address has `https://`. The call blocks for at most 1 s for each IP
/// address of the host, and for 1 s for each read of the response.
///
/// # Errors
/// The error is the reason why no registry is reachable.
pub fn probe(
    address: &Address,
    tls: impl FnOnce() -> Result<Arc<ClientConfig>, rustls::Error>,
) -> Result<(), Unreachable> {
    let targets = (address.host(), address.port()).to_socket_addrs();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for target in targets.map_err(Unreachable::NoConnection)? {
        match TcpStream::connect_timeout(&target, PROBE_TIMEOUT) {
            Ok(stream) => {
                let timeout = stream.set_read_timeout(Some(PROBE_TIMEOUT));
                timeout.map_err(Unreachable::NoResponse)?;
                return match address.is_tls() {
                    true => {
                        let config = tls().map_err(io::Error::other).map_err(Unreachable::Tls)?;
                        match over_tls(stream, address, config) {
                            // With TLS 1.2, the server demands the certificate in the handshake.
                            Err(Unreachable::Tls(error)) if demands_certificate(&error) => Ok(()),
                            stream => check_registry(stream?, address),
                        }
                    }
                    false => check_registry(stream, address),
                };
            }
            Err(error) => last = error,
        }
    }
    Err(Unreachable::NoConnection(last))
}

/// Does the TLS handshake with the server.
fn over_tls(
    mut stream: TcpStream,
    address: &Address,
    config: Arc<ClientConfig>,
) -> Result<StreamOwned<ClientConnection, TcpStream>, Unreachable> {
    let name = ServerName::try_from(address.host().to_owned());
    let name = name.map_err(|error| Unreachable::Tls(io::Error::other(error)))?;
    let connection = ClientConnection::new(config, name);
    let mut connection = connection.map_err(|error| Unreachable::Tls(io::Error::other(error)))?;
    match connection.complete_io(&mut stream) {
        Ok(_) => Ok(StreamOwned::new(connection, stream)),
        Err(error) if is_no_tls(&error) => Err(Unreachable::NoTls),
        Err(error) if is_silence(error.kind()) => Err(Unreachable::NoResponse(error)),
        Err(error) => Err(Unreachable::Tls(error)),
    }
}

/// Whether the server sent nothing, or closed the connection: the cause is not its certificate.
fn is_silence(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{TimedOut, UnexpectedEof, WouldBlock};
    matches!(kind, WouldBlock | TimedOut | UnexpectedEof)
}

/// Whether the server demands a certificate of the client. A container client may have one, but the
/// probe has none.
fn demands_certificate(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    let Some(rustls::Error::AlertReceived(alert)) = cause else {
        return false;
    };
    matches!(alert, AlertDescription::CertificateRequired)
}

/// Whether the first bytes of the server are no TLS record.
fn is_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// Checks the status of the response. A server that refuses this client with 401 or 403, or that
/// demands a client certificate, also counts as a registry.
fn check_registry(mut stream: impl Read + Write, address: &Address) -> Result<(), Unreachable> {
    let status = request_status(&mut stream, address.authority());
    if status.as_ref().is_err_and(demands_certificate) {
        return Ok(());
    }
    let status = status.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof if !address.is_tls() => Unreachable::Closed,
        _ => Unreachable::NoResponse(error),
    })?;
    match String::from_utf8_lossy(&status).split_once(' ') {
        Some((http, code)) if http.starts_with("HTTP/") => match code {
            "404" => Err(Unreachable::NotARegistry),
            _ => Ok(()),
        },
        _ => Err(Unreachable::NotHttp),
    }
}

/// Returns the first 12 bytes of the response, such as `HTTP/1.1 200`.
fn request_status(stream: &mut (impl Read + Write), host: &str) -> io::Result<[u8; 12]> {
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
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    use rustls::crypto::ring::default_provider;
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig, ServerConnection};
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    /// Starts a server that sends `response` to one request. Returns its address.
    fn server(response: &'static str) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 256];
            let length = stream.read(&mut request).expect("a request");
            let request = &request[..length];
            // The second form is the start of a TLS handshake.
            assert!(request.starts_with(b"GET /v2/ HTTP/1.0\r\n") || request.starts_with(&[22, 3]));
            stream.write_all(response.as_bytes()).expect("written");
        });
        Address::of_listener(address, false)
    }

    #[test]
    fn registries_and_other_servers_are_distinguished() {
        assert!(probe_plain(&server("HTTP/1.1 200 OK\r\n\r\n")).is_ok());
        assert!(probe_plain(&server("HTTP/1.1 401 Unauthorized\r\n\r\n")).is_ok());
        let found = probe_plain(&server("HTTP/1.1 404 Not Found\r\n\r\n"));
        assert!(matches!(found, Err(Unreachable::NotARegistry)), "{found:?}");
        let found = probe_plain(&server("SSH-2.0-OpenSSH_9.9\r\n"));
        assert!(matches!(found, Err(Unreachable::NotHttp)), "{found:?}");
        let found = probe_plain(&server("HTTP"));
        assert!(matches!(found, Err(Unreachable::Closed)), "{found:?}");
    }

    #[test]
    fn a_closed_port_is_no_registry() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        for tls in [false, true] {
            let found = probe_plain(&Address::of_listener(address, tls));
            assert!(
                matches!(found, Err(Unreachable::NoConnection(_))),
                "{found:?}"
            );
        }
    }

    fn trusting(authorities: &[&CertificateDer<'static>]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add((*authority).clone()).expect("a certificate");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.expect("versions").with_root_certificates(roots);
        Arc::new(builder.with_no_client_auth())
    }

    fn probe_plain(address: &Address) -> Result<(), Unreachable> {
        probe(address, || Ok(trusting(&[])))
    }

    fn at(address: SocketAddr) -> Address {
        Address::of_listener(address, true)
    }

    /// A registry with TLS. Returns its address and its certificate.
    fn tls_server(connections: usize, is_mutual: bool) -> (SocketAddr, CertificateDer<'static>) {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
        let made = made.expect("a certificate");
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a certificate");
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = builder.expect("versions");
        let builder = match is_mutual {
            true => builder.with_client_cert_verifier(verifier.build().expect("a verifier")),
            false => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(vec![certificate.clone()], key);
        let config = Arc::new(config.expect("a pair"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for _ in 0..connections {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut tls = ServerConnection::new(Arc::clone(&config)).expect("settings");
                if tls.complete_io(&mut stream).is_ok() {
                    let mut stream = StreamOwned::new(tls, stream);
                    let _ = stream.read(&mut [0; 256]);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                }
            }
        });
        (address, certificate)
    }

    #[test]
    fn a_certificate_that_the_client_does_not_trust_is_found() {
        let (address, certificate) = tls_server(3, false);
        assert!(probe(&at(address), || Ok(trusting(&[&certificate]))).is_ok());
        let (_, other) = tls_server(0, false);
        for authorities in [&[][..], &[&other]] {
            let found = probe(&at(address), || Ok(trusting(authorities)));
            assert!(matches!(found, Err(Unreachable::Tls(_))), "{found:?}");
        }
    }

    #[test]
    fn a_server_that_demands_a_client_certificate_is_reachable() {
        let (address, certificate) = tls_server(1, true);
        let found = probe(&at(address), || Ok(trusting(&[&certificate])));
        assert!(found.is_ok(), "{found:?}");
    }

    #[test]
    fn a_silent_server_has_no_wrong_certificate() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let found = probe_plain(&at(address));
        let is_silent = matches!(found, Err(Unreachable::NoResponse(_)));
        assert!(is_silent, "{found:?}");
    }

    #[test]
    fn a_wrong_scheme_is_found() {
        let plain = server("HTTP/1.1 400 Bad Request\r\n\r\n");
        let https = format!("https://{}", plain.authority());
        let found = probe_plain(&https.parse().expect("an address"));
        assert!(matches!(found, Err(Unreachable::NoTls)), "{found:?}");
        let (address, _) = tls_server(1, false);
        let found = probe_plain(&Address::of_listener(address, false));
        assert!(matches!(found, Err(Unreachable::Closed)), "{found:?}");
    }
}
