//! The client of one connection, as its requests see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::ServerConnection;

use crate::access::certificate;
use crate::http::client_progress::ClientProgress;
use crate::limits::client_usage::ClientUsage;
use crate::limits::connections::ConnectionActivity;
use crate::limits::limit::Limit;

/// Who asks.
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// What it takes in all its connections.
    pub(crate) client: Arc<ClientUsage>,
    /// Whether this connection waits for its client.
    pub(crate) activity: Arc<ConnectionActivity>,
    pub(crate) channel: Channel,
    pub(crate) progress: Arc<ClientProgress>,
    /// This connection is over that limit: everything is answered 503.
    pub(crate) over: Option<Limit>,
    /// Committed blobs leave from their file, past our memory.
    pub(crate) sends_files: bool,
}

impl Peer {
    /// For a connection with a slot.
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
            over: None,
            sends_files: false,
        }
    }

    /// For a connection that only gets the refusal of its limit.
    pub(crate) fn refused(address: SocketAddr, client: Arc<ClientUsage>, limit: Limit) -> Self {
        let activity = Arc::new(ConnectionActivity::uncounted(client.clone()));
        Self {
            over: Some(limit),
            ..Self::new(address, client, activity)
        }
    }
}

/// What stands between a client and us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    Plain,
    Tls,
    /// TLS, and the client showed a certificate that was found good.
    Certified,
}

impl Channel {
    /// `None`: the session was resumed, and the certificate that it began with has ended.
    pub(crate) fn of(connection: &ServerConnection) -> Option<Self> {
        match connection.peer_certificates() {
            Some(certificates) => certificate::is_current(certificates).then_some(Self::Certified),
            None => Some(Self::Tls),
        }
    }
}

impl Peer {
    /// Whether a password may travel: nobody but the two of us can read it.
    pub(crate) fn is_private(&self) -> bool {
        self.channel != Channel::Plain || is_loopback(self.address)
    }
}

/// Also when written as an IPv6 address that carries an IPv4 one.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
