//! Who may ask: the one check between a request's path and its answer.
//!
//! Nobody is asked who they are unless the configuration says so, and then a verdict that is known costs
//! one keyed hash and one look into a table.

pub(crate) mod basic;
mod certificate;
mod guests;
pub(crate) mod htpasswd;
mod known;
mod logins;
mod metrics;
mod table;
mod throttle;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Response};
use pierhead_oci::Endpoint;
use rustls::ServerConnection;

use crate::Error;
use crate::answer::Peer;
use crate::body::Body;
use crate::document::Deadline;
use crate::respond::CHALLENGE;
use crate::service::Inner;
pub(crate) use certificate::Named;
pub(crate) use guests::{Clean, Guests};
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
        /// Whether those who bring no login may read what upstreams let everybody read.
        anonymous: bool,
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
    Guests(Guests),
}

impl Access {
    /// `None`: everybody is let in. Reads files, so it blocks; one that cannot be read lets nobody in.
    pub(crate) fn new(auth: &Auth, metrics: &Metrics) -> Option<Arc<Self>> {
        let access = match auth {
            Auth::Open => return None,
            Auth::Certificate => Self::Certificate,
            Auth::PassThrough {
                lifetime,
                anonymous,
            } => Self::Guests(Guests::new(*lifetime, *anonymous, metrics.clone())),
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
            Self::Guests(_) => None,
            Self::Logins(logins) => match request.headers.get(AUTHORIZATION) {
                None => Some(Err(Error::Login)),
                Some(header) => logins.known(header).then_some(Ok(())),
            },
        }
    }
}

/// Lets a request in or says why not; with whose eyes to look, when they are the client's own. Costs one
/// atomic load while everybody is let in.
pub(crate) async fn admit(
    inner: &Arc<Inner>,
    peer: &Peer,
    request: &Parts,
    endpoint: &Endpoint,
    deadline: Deadline,
) -> Result<Option<Arc<Inner>>, Error> {
    let access = inner.access.load();
    let Some(access) = &*access else {
        return Ok(None);
    };
    match access.at_once(peer, request) {
        Some(verdict) => verdict.map(|()| None),
        None => {
            let access = access.clone();
            Box::pin(async move {
                match &*access {
                    Access::Guests(guests) => {
                        let guest = guests.admit(inner, peer, request, endpoint, deadline);
                        guest.await.map(Some)
                    }
                    Access::Logins(logins) => match request.headers.get(AUTHORIZATION) {
                        Some(header) => logins.ask(header, peer.address).await.map(|()| None),
                        None => Err(Error::Login),
                    },
                    Access::Certificate => Err(Error::NoCertificate),
                }
            })
            .await
        }
    }
}

/// Podman sends a login when the answer to its ping, though it be 200, says how.
pub(crate) fn invite(mut response: Response<Body>, peer: &Peer) -> Response<Body> {
    if peer.is_private() {
        let challenge = HeaderValue::from_static(CHALLENGE);
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}
