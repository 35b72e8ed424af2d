//! Who may ask: the one check between a request's path and its answer.
//!
//! Nobody is asked who they are unless the configuration says so, and then a verdict that is known costs
//! one keyed hash and one look into a table.

mod basic;
mod certificate;
mod htpasswd;
mod logins;
mod metrics;
mod table;
mod throttle;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use rustls::ServerConnection;

use crate::Error;
use crate::answer::Peer;
use crate::service::Inner;
pub(crate) use certificate::Named;
use logins::Logins;
pub(crate) use metrics::Metrics;

pub use htpasswd::check as check_htpasswd;

/// How clients prove who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Auth {
    /// They need not.
    #[default]
    Open,
    /// By a certificate, which the handshake has looked at ([`Tls::client_ca`](crate::Tls::client_ca)).
    Certificate,
    /// By user and password.
    Htpasswd {
        /// Lines `user:hash` with hashes of bcrypt; reread when it changes.
        file: PathBuf,
        /// A login that was found right is not looked at again for so long.
        lifetime: Duration,
    },
    /// By what an upstream lets their own login read.
    PassThrough {
        /// An upstream's verdict counts for so long.
        lifetime: Duration,
    },
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
    fn is_private(&self) -> bool {
        self.channel != Channel::Plain || is_loopback(self.address)
    }
}

/// Also when written as an IPv6 address that carries an IPv4 one.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// One configured way of asking.
pub(crate) enum Access {
    Certificate,
    Logins(Logins),
}

impl Access {
    /// `None`: everybody is let in. Reads files, so it blocks; one that cannot be read lets nobody in.
    pub(crate) fn new(auth: &Auth, metrics: &Metrics) -> Option<Arc<Self>> {
        let access = match auth {
            Auth::Open => return None,
            Auth::PassThrough { .. } | Auth::Certificate => Self::Certificate,
            Auth::Htpasswd { file, lifetime } => {
                Self::Logins(Logins::new(file.clone(), *lifetime, metrics.clone()))
            }
        };
        Some(Arc::new(access))
    }

    /// Files are looked at before the next verdict.
    pub(crate) fn look_again(&self) {
        if let Self::Logins(logins) = self {
            logins.look_again();
        }
    }

    /// The verdict, where it is known without waiting. No allocation.
    fn at_once(&self, peer: &Peer, request: &Parts) -> Option<Result<(), Error>> {
        match self {
            Self::Certificate if peer.channel == Channel::Certified => Some(Ok(())),
            Self::Certificate => Some(Err(Error::NoCertificate)),
            // Where a certificate is optional, it says who one is as well as a password does.
            Self::Logins(_) if peer.channel == Channel::Certified => Some(Ok(())),
            Self::Logins(_) if !peer.is_private() => Some(Err(Error::InTheClear)),
            Self::Logins(logins) => match request.headers.get(AUTHORIZATION) {
                None => Some(Err(Error::Login)),
                Some(header) => logins.known(header).then_some(Ok(())),
            },
        }
    }
}

/// Lets a request in or says why not. Costs one atomic load while everybody is let in.
pub(crate) async fn admit(inner: &Arc<Inner>, peer: &Peer, request: &Parts) -> Result<(), Error> {
    let access = inner.access.load();
    let Some(access) = &*access else {
        return Ok(());
    };
    match access.at_once(peer, request) {
        Some(verdict) => verdict,
        None => Box::pin(access.clone().ask(peer, request)).await,
    }
}

impl Access {
    /// The verdict, where somebody has to be asked: the file, the clock.
    async fn ask(self: Arc<Self>, peer: &Peer, request: &Parts) -> Result<(), Error> {
        match (&*self, request.headers.get(AUTHORIZATION)) {
            (Self::Logins(logins), Some(header)) => logins.ask(header, peer.address).await,
            _ => Err(Error::Login),
        }
    }
}
