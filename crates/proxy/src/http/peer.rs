//! The client of one connection: its address, its limits, and whether the connection may carry
//! passwords.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::ServerConnection;

use crate::access::certificate;
use crate::http::client_progress::ClientProgress;
use crate::limits::client_usage::ClientUsage;
use crate::limits::connections::ConnectionActivity;
use crate::limits::limit::Limit;

/// The client of one connection.
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// The resources that the client uses over all its connections together.
    pub(crate) client: Arc<ClientUsage>,
    /// The activity of this connection: whether it is idle or serves a request.
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) channel: Channel,
    pub(crate) progress: Arc<ClientProgress>,
    /// The limit that this connection exceeds. `None` if the connection exceeds no limit. If a
    /// limit is exceeded, each request gets 503.
    pub(crate) exceeded: Option<Limit>,
    /// Whether the connection sends cached blobs by `sendfile`, which needs no memory of the
    /// pierhead process.
    pub(crate) sends_files: bool,
}

impl Peer {
    /// Creates the peer of a connection within the connection limits.
    pub(crate) fn new(
        address: SocketAddr,
        client: Arc<ClientUsage>,
        activity: Arc<ConnectionActivity>,
    ) -> Self {
        Self {
            address: address.ip(),
            client,
            activity,
            channel: Channel::Plain,
            progress: Arc::default(),
            exceeded: None,
            sends_files: false,
        }
    }

    /// Creates the peer of a connection that gets only the error of the limit that it exceeds.
    pub(crate) fn refused(address: SocketAddr, client: Arc<ClientUsage>, limit: Limit) -> Self {
        let activity = Arc::new(ConnectionActivity::uncounted(client.clone()));
        Self {
            exceeded: Some(limit),
            ..Self::new(address, client, activity)
        }
    }
}

/// The transport between a client and pierhead: plain TCP, TLS, or TLS with a client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Plain,
    Tls,
    /// TLS with a verified client certificate.
    Certified,
}

impl Channel {
    /// Returns the channel of a TLS connection. `None`: the client resumed a session whose
    /// certificate has expired.
    pub(crate) fn of(connection: &ServerConnection) -> Option<Self> {
        match connection.peer_certificates() {
            Some(certificates) => certificate::is_current(certificates).then_some(Self::Certified),
            None => Some(Self::Tls),
        }
    }
}

impl Peer {
    /// Whether the connection may carry a password, because it uses TLS or stays on this machine.
    pub(crate) fn is_private(&self) -> bool {
        self.channel != Channel::Plain || is_loopback(self.address)
    }
}

/// Whether the address is a loopback address, also in its IPv4-mapped IPv6 form.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
