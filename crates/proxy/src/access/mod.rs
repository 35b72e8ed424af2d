//! Client authentication and authorization, cached.
//!
//! Clients need no credentials unless the configuration demands them. A cached decision costs one keyed
//! hash and one table lookup.

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
use pierhead_host::Panics;
use pierhead_oci::Endpoint;
use rustls::ServerConnection;

use crate::Error;
use crate::answer::Peer;
use crate::body::Body;
use crate::deadline::Deadline;
use crate::refusals::Refusal;
use crate::respond::CHALLENGE;
use crate::service::Inner;
pub(crate) use certificate::Named;
pub(crate) use guests::{Clean, Guests};
use known::Sealer;
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
    /// Something is missing without which nobody can be told from anybody.
    Nobody,
}

impl Access {
    /// `None`: everybody is let in. Reads files, so it blocks; one that cannot be read lets nobody in.
    pub(crate) fn new(auth: &Auth, metrics: &Metrics, panics: &Panics) -> Option<Arc<Self>> {
        Self::with(auth, metrics, panics, Sealer::new).map(Arc::new)
    }

    fn with(
        auth: &Auth,
        metrics: &Metrics,
        panics: &Panics,
        sealer: impl FnOnce() -> Option<Sealer>,
    ) -> Option<Self> {
        let sealed = |make: &dyn Fn(Sealer) -> Self| {
            sealer().map_or_else(
                || {
                    tracing::error!("the system gives no random numbers: nobody is let in");
                    Self::Nobody
                },
                make,
            )
        };
        Some(match auth {
            Auth::Open => return None,
            Auth::Certificate => Self::Certificate,
            Auth::PassThrough {
                lifetime,
                anonymous,
            } => sealed(&|sealer| {
                Self::Guests(Guests::new(
                    *lifetime,
                    *anonymous,
                    sealer,
                    metrics.clone(),
                    panics.clone(),
                ))
            }),
            Auth::Htpasswd { file, lifetime } => sealed(&|sealer| {
                Self::Logins(Logins::new(
                    file.clone(),
                    *lifetime,
                    sealer,
                    metrics.clone(),
                    panics.clone(),
                ))
            }),
        })
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
            Self::Nobody => Some(Err(Error::Internal)),
            Self::Guests(_) => None,
            Self::Logins(logins) => match request.headers.get(AUTHORIZATION) {
                None => Some(Err(Error::Login)),
                Some(header) => logins.known(header).then_some(Ok(())),
            },
        }
    }

    /// The verdict that [`Self::at_once`] does not know.
    async fn ask(&self, inner: &Inner, peer: &Peer, request: &Parts) -> Result<(), Error> {
        match self {
            Self::Logins(logins) => {
                let header = request.headers.get(AUTHORIZATION).ok_or(Error::Login)?;
                let verdict = logins.ask(header, peer.address).await;
                if let Err(error @ Error::Login) = &verdict {
                    note_refused_login(inner, peer.address, error);
                }
                verdict
            }
            Self::Certificate => Err(Error::NoCertificate),
            Self::Guests(_) | Self::Nobody => Err(Error::Internal),
        }
    }
}

/// Lets a request in or says why not; with whose eyes to look, when they are the client's own. Costs one
/// comparison while everybody is let in.
pub(crate) async fn admit(
    inner: &Arc<Inner>,
    peer: &Peer,
    request: &Parts,
    endpoint: &Endpoint,
    deadline: Deadline,
) -> Result<Option<Arc<Inner>>, Error> {
    let Some(access) = inner.access() else {
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
                    _ => access.ask(inner, peer, request).await.map(|()| None),
                }
            })
            .await
        }
    }
}

/// Checks who sends a request before its body is read. Pass-through only checks that there is a login, if one is needed:
/// the body names the image that the upstream is asked about.
pub(crate) async fn admit_body(
    inner: &Arc<Inner>,
    peer: &Peer,
    request: &Parts,
) -> Result<(), Error> {
    let Some(access) = inner.access() else {
        return Ok(());
    };
    if let Access::Guests(guests) = &**access {
        return guests.credentials(peer, request).map(drop);
    }
    let Some(verdict) = access.at_once(peer, request) else {
        let deadline = Deadline::new(inner.config.load().answer_within);
        let asked = Box::pin(access.ask(inner, peer, request));
        return match tokio::time::timeout_at(deadline.end(), asked).await {
            Ok(verdict) => verdict,
            Err(_) => Err(Error::Late),
        };
    };
    verdict
}

/// Logs no user name, since users type passwords into the wrong field.
fn note_refused_login(inner: &Inner, client: IpAddr, error: &Error) {
    let event = "a login was refused";
    let refusal = Refusal {
        event,
        cause: error.cause(),
        client: Some(client),
        registry: None,
    };
    if inner.refusals.is_new(&refusal, (), error) {
        tracing::info!(%client, "{event}");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{Activity, Client};

    fn peer(address: &str, channel: Channel) -> Peer {
        let address = std::net::SocketAddr::new(address.parse().unwrap(), 1);
        let client = Arc::new(Client::operator());
        let activity = Arc::new(Activity::uncounted(client.clone()));
        let peer = Peer::new(address, client, activity);
        Peer { channel, ..peer }
    }

    fn request(login: bool) -> Parts {
        let mut request = http::Request::get("/v2/");
        if login {
            request = request.header(AUTHORIZATION, "Basic YW5uOnB3");
        }
        request.body(()).unwrap().into_parts().0
    }

    fn htpasswd() -> Arc<Access> {
        let auth = Auth::Htpasswd {
            file: "/absent/users".into(),
            lifetime: Duration::from_secs(60),
        };
        Access::new(&auth, &Metrics::default(), &Panics::default()).unwrap()
    }

    /// The challenge goes with `Login`, so it must not arise where a password could be read on the way.
    #[test]
    fn passwords_travel_over_tls_or_within_this_machine_only() {
        let access = htpasswd();
        let (lifetime, sealer) = (Duration::from_secs(60), Sealer::new().unwrap());
        let guests = Guests::new(
            lifetime,
            true,
            sealer,
            Metrics::default(),
            Panics::default(),
        );
        for address in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"] {
            let plain = peer(address, Channel::Plain);
            for login in [true, false] {
                let verdict = access.at_once(&plain, &request(login));
                assert!(
                    matches!(verdict, Some(Err(Error::InTheClear))),
                    "{address} {login}"
                );
            }
            assert!(matches!(
                guests.of(&plain, &request(true)),
                Err(Error::InTheClear)
            ));
            assert!(matches!(guests.of(&plain, &request(false)), Ok(None)));
            let tls = peer(address, Channel::Tls);
            assert!(matches!(
                access.at_once(&tls, &request(false)),
                Some(Err(Error::Login))
            ));
            assert!(
                access.at_once(&tls, &request(true)).is_none(),
                "it is looked at"
            );
            assert!(matches!(guests.of(&tls, &request(true)), Ok(Some(_))));
        }
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let here = peer(address, Channel::Plain);
            assert!(matches!(
                access.at_once(&here, &request(false)),
                Some(Err(Error::Login))
            ));
        }
    }

    #[test]
    fn without_random_numbers_nobody_is_let_in() {
        let pass_through = Auth::PassThrough {
            lifetime: Duration::from_secs(60),
            anonymous: true,
        };
        let access = Access::with(
            &pass_through,
            &Metrics::default(),
            &Panics::default(),
            || None,
        )
        .unwrap();
        for channel in [Channel::Plain, Channel::Tls, Channel::Certified] {
            let verdict = access.at_once(&peer("127.0.0.1", channel), &request(true));
            assert!(matches!(verdict, Some(Err(Error::Internal))), "{channel:?}");
        }
        // Nothing is remembered about these.
        let with = |auth| Access::with(auth, &Metrics::default(), &Panics::default(), || None);
        assert!(with(&Auth::Open).is_none());
        assert!(matches!(
            with(&Auth::Certificate),
            Some(Access::Certificate)
        ));
    }

    #[test]
    fn a_certificate_is_as_good_as_a_password_and_nothing_else_is_as_good_as_a_certificate() {
        let certified = peer("192.0.2.7", Channel::Certified);
        assert!(matches!(
            htpasswd().at_once(&certified, &request(false)),
            Some(Ok(()))
        ));
        let access =
            Access::new(&Auth::Certificate, &Metrics::default(), &Panics::default()).unwrap();
        assert!(matches!(
            access.at_once(&certified, &request(false)),
            Some(Ok(()))
        ));
        for channel in [Channel::Plain, Channel::Tls] {
            let verdict = access.at_once(&peer("127.0.0.1", channel), &request(true));
            assert!(
                matches!(verdict, Some(Err(Error::NoCertificate))),
                "{channel:?}"
            );
        }
        assert!(Access::new(&Auth::Open, &Metrics::default(), &Panics::default()).is_none());
    }
}
