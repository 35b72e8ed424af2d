//! Opens connections to the host of a URL: checks the SSRF guard, then connects by TCP, HTTPS proxy
//! and TLS.

pub(crate) mod certificate;
pub(crate) mod guard;
pub(crate) mod pool;
pub(crate) mod resolve;
pub(crate) mod spawner;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::connect::certificate::{CertificateFault, certificate_fault};
use crate::connect::guard::{AllowedAddresses, TargetPolicy};
use crate::connect::resolve::Resolve;

/// If the connection to an address is not open after this time, pierhead tries the next address in
/// parallel (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Maximum number of addresses of one host name to which pierhead tries to connect.
const MAX_ADDRESSES: usize = 8;

/// Time limit of the lookup on this machine of a name that the HTTPS proxy resolves later. This
/// time limit is short: if an HTTPS proxy is the only way to the Internet, the local name servers
/// may not know the name.
const PROXY_LOOKUP_LIMIT: Duration = Duration::from_millis(500);

/// Opens connections for one upstream, within the upstream's [`TargetPolicy`].
#[derive(Clone)]
pub(crate) struct Connector(Arc<Shared>);

struct Shared {
    targets: TargetPolicy,
    tls: TlsConnector,
    proxy: Option<Arc<Matcher>>,
    resolver: Arc<dyn Resolve>,
    timeout: Duration,
    /// Whether clients must not learn which names exist: see [`Shared::hide_missing_name`].
    hides_missing_names: bool,
}

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The SSRF guard forbids the target.
    #[error("{0}")]
    Forbidden(String),
    /// The host of a registry that a client named does not exist.
    #[error("{0}")]
    NoSuchHost(String),
    /// A step of the connection failed: DNS, TCP, the proxy or TLS.
    #[error("{what}")]
    Failed {
        what: String,
        certificate: Option<CertificateFault>,
        #[source]
        source: Option<io::Error>,
    },
}

impl ConnectError {
    fn failed(what: impl Into<String>) -> Self {
        Self::Failed {
            what: what.into(),
            certificate: None,
            source: None,
        }
    }

    fn because(what: String, source: io::Error) -> Self {
        Self::Failed {
            what,
            certificate: None,
            source: Some(source),
        }
    }
}

impl Connector {
    pub(crate) fn new(
        targets: TargetPolicy,
        tls: Arc<rustls::ClientConfig>,
        proxy: Option<Arc<Matcher>>,
        resolver: Arc<dyn Resolve>,
        timeout: Duration,
    ) -> Self {
        Self(Arc::new(Shared {
            targets,
            tls: tls.into(),
            proxy,
            resolver,
            timeout,
            hides_missing_names: false,
        }))
    }

    /// Returns this connector for unconfigured registries. The returned connector hides whether a
    /// host name exists, because clients choose the names of these registries.
    pub(crate) fn hiding_missing_names(mut self) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.0) {
            shared.hides_missing_names = true;
        }
        self
    }
}

impl Shared {
    async fn connect(&self, uri: &Uri) -> Result<Stream, ConnectError> {
        let allowed = self.targets.check(uri).map_err(ConnectError::Forbidden)?;
        let (host, port) = host_and_port(uri)?;
        let intercept = self.proxy.as_ref().and_then(|proxy| proxy.intercept(uri));
        let tcp = match intercept {
            Some(proxy) => {
                self.check_before_proxy(&host, port, allowed).await?;
                tunnel(&proxy, uri, &self.resolver).await?
            }
            None => {
                let connected = connect_any(&*self.resolver, &host, port, allowed).await;
                connected.map_err(|error| self.hide_missing_name(&host, error))?
            }
        };
        if uri.scheme() != Some(&Scheme::HTTPS) {
            return Ok(Stream::new(tcp));
        }
        let name = ServerName::try_from(host.clone()).map_err(|_| {
            ConnectError::failed(format!("{host} is not a valid name in a certificate"))
        })?;
        let tls = self.tls.connect(name, tcp).await;
        let tls = tls.map_err(|e| {
            let (certificate, hint) = certificate_fault(&e).unzip();
            let hint = hint.unwrap_or_else(|| plain_http_hint(&e).to_owned());
            ConnectError::Failed {
                what: format!("TLS with {host}:{port} failed: {e}{hint}"),
                certificate,
                source: Some(e),
            }
        })?;
        Ok(Stream::new(tls))
    }
}

impl Shared {
    /// If a client chose the name of a missing host, replaces the error by the error of an internal
    /// address.
    fn hide_missing_name(&self, host: &str, error: ConnectError) -> ConnectError {
        match error {
            ConnectError::Failed {
                source: Some(source),
                ..
            } if self.hides_missing_names && source.kind() == io::ErrorKind::NotFound => {
                tracing::debug!(host, "the host does not exist");
                ConnectError::NoSuchHost(guard::no_public_address(host))
            }
            error => error,
        }
    }

    /// Refuses a name that resolves to an internal address on this machine. The HTTPS proxy
    /// resolves the name again and may get other addresses. The proxy itself must refuse internal
    /// addresses among them.
    async fn check_before_proxy(
        &self,
        host: &str,
        port: u16,
        allowed: AllowedAddresses,
    ) -> Result<(), ConnectError> {
        if allowed == AllowedAddresses::Any {
            return Ok(());
        }
        let resolving = self.resolver.resolve(host.to_owned(), port);
        match tokio::time::timeout(PROXY_LOOKUP_LIMIT, resolving).await {
            Ok(Ok(addresses)) => all_public(host, &addresses),
            _ => Ok(()),
        }
    }
}

fn all_public(host: &str, addresses: &[SocketAddr]) -> Result<(), ConnectError> {
    match addresses
        .iter()
        .all(|address| guard::is_public(address.ip()))
    {
        true => Ok(()),
        false => Err(ConnectError::Forbidden(guard::no_public_address(host))),
    }
}

/// Returns a hint for a server that does not respond with TLS. Most often such a server is a
/// registry with plain HTTP.
fn plain_http_hint(error: &std::io::Error) -> &'static str {
    let cause = error.get_ref().and_then(|e| e.downcast_ref());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => {
            " (if it speaks plain HTTP, its entry in `addresses` must begin with http://)"
        }
        _ => "",
    }
}

fn host_and_port(uri: &Uri) -> Result<(String, u16), ConnectError> {
    guard::host_of(uri)
        .zip(guard::port_of(uri))
        .ok_or_else(|| ConnectError::failed("the URL has no host"))
}

/// Resolves a name, checks its addresses, and connects to the first address that accepts the
/// connection. Connects only to addresses that were checked, so that DNS rebinding has no effect.
async fn connect_any(
    resolver: &dyn Resolve,
    host: &str,
    port: u16,
    allowed: AllowedAddresses,
) -> Result<TcpStream, ConnectError> {
    let resolved = resolver.resolve(host.to_owned(), port).await;
    let resolved = resolved
        .map_err(|e| ConnectError::because(format!("{host} cannot be resolved: {e}"), e))?;
    if allowed == AllowedAddresses::Public {
        all_public(host, &resolved)?;
    }
    let addresses = alternate(resolved.into_iter());
    let mut waiting = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut last = ConnectError::failed(format!("{host} has no address"));
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(async move { (address, TcpStream::connect(address).await) });
        }
        let more = waiting.len() > 0;
        let done = tokio::select! {
            done = attempts.next() => done,
            () = tokio::time::sleep(ATTEMPT_DELAY), if more => continue,
        };
        match done {
            Some((_, Ok(stream))) => {
                // Nagle's algorithm is off, because it would delay requests: each request is one
                // small write.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Some((address, Err(e))) => last = ConnectError::because(format!("{address}: {e}"), e),
            None => return Err(last),
        }
    }
}

/// Alternates IPv4 and IPv6 addresses. The family that the resolver prefers comes first.
fn alternate(resolved: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let all: Vec<_> = resolved.collect();
    let first_is_v6 = all.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    let mut second = second.into_iter();
    let mut mixed = Vec::new();
    for address in first {
        mixed.push(address);
        mixed.extend(second.next());
    }
    mixed.extend(second);
    mixed.truncate(MAX_ADDRESSES);
    mixed
}

/// Connects through the HTTPS proxy, which resolves the name. The address of the proxy may be
/// internal, because the operator configured it.
async fn tunnel(
    proxy: &Intercept,
    uri: &Uri,
    resolver: &Arc<dyn Resolve>,
) -> Result<TcpStream, ConnectError> {
    let mut tunnel = Tunnel::new(proxy.uri().clone(), ProxyConnector(Arc::clone(resolver)));
    if let Some(auth) = proxy.basic_auth() {
        tunnel = tunnel.with_auth(auth.clone());
    }
    match tunnel.call(uri.clone()).await {
        Ok(stream) => Ok(stream.into_inner()),
        Err(e) => {
            let address = proxy
                .uri()
                .authority()
                .map(|authority| authority.host())
                .unwrap_or_default();
            let source = std::error::Error::source(&e)
                .map(|source| format!(": {source}"))
                .unwrap_or_default();
            Err(ConnectError::failed(format!(
                "HTTPS proxy {address}: {e}{source}"
            )))
        }
    }
}

/// Opens the TCP connection to the proxy for [`Tunnel`].
struct ProxyConnector(Arc<dyn Resolve>);

impl Service<Uri> for ProxyConnector {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let resolver = Arc::clone(&self.0);
        Box::pin(async move {
            let (host, port) = host_and_port(&uri)?;
            Ok(TokioIo::new(
                connect_any(&*resolver, &host, port, AllowedAddresses::Any).await?,
            ))
        })
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            match tokio::time::timeout(shared.timeout, shared.connect(&uri)).await {
                Ok(result) => result,
                Err(_) => Err(ConnectError::failed(format!(
                    "no connection to {} within {:?}",
                    uri.authority()
                        .map(|authority| authority.as_str())
                        .unwrap_or_default(),
                    shared.timeout
                ))),
            }
        })
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection with the traits that hyper requires.
pub(crate) struct Stream(TokioIo<Box<dyn Duplex>>);

impl Stream {
    fn new(io: impl Duplex + 'static) -> Self {
        Self(TokioIo::new(Box::new(io)))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::{SystemFiles, SystemResolver};
    use crate::metrics::DnsMetrics;

    #[test]
    fn families_alternate_and_are_bounded() {
        let parse = |texts: &[&str]| {
            texts
                .iter()
                .map(|t| t.parse().unwrap())
                .collect::<Vec<SocketAddr>>()
        };
        let mixed = alternate(parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1"]).into_iter());
        assert_eq!(
            mixed,
            parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"])
        );
        let many = (0..100).map(|n| SocketAddr::from(([10, 0, 0, n], 1)));
        assert_eq!(alternate(many).len(), MAX_ADDRESSES);
    }

    #[tokio::test]
    async fn an_internal_address_is_refused_under_any_name() {
        // The resolver parses a number as an address. Besides, a hostile DNS server can return an
        // internal address for any name.
        let resolver = SystemResolver::new(SystemFiles::default(), DnsMetrics::default());
        let error = connect_any(&resolver, "127.0.0.1", 1, AllowedAddresses::Public)
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::Forbidden(_)), "{error}");
        let error = connect_any(&resolver, "localhost", 1, AllowedAddresses::Public)
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::Forbidden(_)), "{error}");
        let error = connect_any(&resolver, "127.0.0.1", 1, AllowedAddresses::Any)
            .await
            .unwrap_err();
        assert!(matches!(error, ConnectError::Failed { .. }), "{error}");
    }
}
