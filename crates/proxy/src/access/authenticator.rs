//! Client authentication and authorization, cached.
//!
//! Clients need no credentials unless the configuration demands them. A cached decision costs one keyed
//! hash and one table lookup.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_host::Panics;
use pierhead_remote::KeyedHasher;

use crate::access::htpasswd_auth::HtpasswdAuth;
use crate::access::metrics::AccessMetrics;
use crate::access::pass_through::PassThrough;
use crate::config::Auth;
use crate::error::Error;
use crate::http::peer::{Channel, Peer};

/// One configured way of asking.
pub(crate) enum Authenticator {
    Certificate,
    Htpasswd(HtpasswdAuth),
    PassThrough(PassThrough),
    /// Something is missing without which nobody can be told from anybody.
    DenyAll,
}

impl Authenticator {
    /// `None`: everybody is let in. Reads files, so it blocks; one that cannot be read lets nobody in.
    pub(crate) fn new(auth: &Auth, metrics: &AccessMetrics, panics: &Panics) -> Option<Arc<Self>> {
        Self::with(auth, metrics, panics, KeyedHasher::new).map(Arc::new)
    }

    fn with(
        auth: &Auth,
        metrics: &AccessMetrics,
        panics: &Panics,
        hasher: impl FnOnce() -> Option<KeyedHasher>,
    ) -> Option<Self> {
        let sealed = |make: &dyn Fn(KeyedHasher) -> Self| {
            hasher().map_or_else(
                || {
                    tracing::error!("the system gives no random numbers: nobody is let in");
                    Self::DenyAll
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
            } => sealed(&|hasher| {
                Self::PassThrough(PassThrough::new(
                    *lifetime,
                    *anonymous,
                    hasher,
                    metrics.clone(),
                    panics.clone(),
                ))
            }),
            Auth::Htpasswd { file, lifetime } => sealed(&|hasher| {
                Self::Htpasswd(HtpasswdAuth::new(
                    file.clone(),
                    *lifetime,
                    hasher,
                    metrics.clone(),
                    panics.clone(),
                ))
            }),
        })
    }

    /// Files are looked at before the next verdict.
    pub(crate) fn look_again(&self) {
        if let Self::Htpasswd(logins) = self {
            logins.look_again();
        }
    }

    /// The verdict, where it is known without waiting. No allocation.
    pub(crate) fn at_once(&self, peer: &Peer, request: &Parts) -> Option<Result<(), Error>> {
        match self {
            Self::Certificate if peer.channel == Channel::Certified => Some(Ok(())),
            Self::Certificate => Some(Err(Error::NoCertificate)),
            // Where a certificate is optional, it says who one is as well as a password does.
            Self::Htpasswd(_) if peer.channel == Channel::Certified => Some(Ok(())),
            Self::Htpasswd(_) if !peer.is_private() => Some(Err(Error::InsecurePassword)),
            Self::DenyAll => Some(Err(Error::Internal)),
            Self::PassThrough(_) => None,
            Self::Htpasswd(logins) => match request.headers.get(AUTHORIZATION) {
                None => Some(Err(Error::LoginRequired)),
                Some(header) => logins.known(header).then_some(Ok(())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::client_usage::ClientUsage;
    use crate::limits::connections::ConnectionActivity;

    fn peer(address: &str, channel: Channel) -> Peer {
        let address = std::net::SocketAddr::new(address.parse().unwrap(), 1);
        let client = Arc::new(ClientUsage::operator());
        let activity = Arc::new(ConnectionActivity::uncounted(client.clone()));
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

    fn htpasswd() -> Arc<Authenticator> {
        let auth = Auth::Htpasswd {
            file: "/absent/users".into(),
            lifetime: Duration::from_secs(60),
        };
        Authenticator::new(&auth, &AccessMetrics::default(), &Panics::default()).unwrap()
    }

    /// The challenge goes with `Login`, so it must not arise where a password could be read on the way.
    #[test]
    fn passwords_travel_over_tls_or_within_this_machine_only() {
        let access = htpasswd();
        let (lifetime, hasher) = (Duration::from_secs(60), KeyedHasher::new().unwrap());
        let pass_through = PassThrough::new(
            lifetime,
            true,
            hasher,
            AccessMetrics::default(),
            Panics::default(),
        );
        for address in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"] {
            let plain = peer(address, Channel::Plain);
            for login in [true, false] {
                let verdict = access.at_once(&plain, &request(login));
                assert!(
                    matches!(verdict, Some(Err(Error::InsecurePassword))),
                    "{address} {login}"
                );
            }
            assert!(matches!(
                pass_through.of(&plain, &request(true)),
                Err(Error::InsecurePassword)
            ));
            assert!(matches!(pass_through.of(&plain, &request(false)), Ok(None)));
            let tls = peer(address, Channel::Tls);
            assert!(matches!(
                access.at_once(&tls, &request(false)),
                Some(Err(Error::LoginRequired))
            ));
            assert!(
                access.at_once(&tls, &request(true)).is_none(),
                "it is looked at"
            );
            assert!(matches!(pass_through.of(&tls, &request(true)), Ok(Some(_))));
        }
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let here = peer(address, Channel::Plain);
            assert!(matches!(
                access.at_once(&here, &request(false)),
                Some(Err(Error::LoginRequired))
            ));
        }
    }

    #[test]
    fn without_random_numbers_nobody_is_let_in() {
        let pass_through = Auth::PassThrough {
            lifetime: Duration::from_secs(60),
            anonymous: true,
        };
        let access = Authenticator::with(
            &pass_through,
            &AccessMetrics::default(),
            &Panics::default(),
            || None,
        )
        .unwrap();
        for channel in [Channel::Plain, Channel::Tls, Channel::Certified] {
            let verdict = access.at_once(&peer("127.0.0.1", channel), &request(true));
            assert!(matches!(verdict, Some(Err(Error::Internal))), "{channel:?}");
        }
        // Nothing is remembered about these.
        let with = |auth| {
            Authenticator::with(auth, &AccessMetrics::default(), &Panics::default(), || None)
        };
        assert!(with(&Auth::Open).is_none());
        assert!(matches!(
            with(&Auth::Certificate),
            Some(Authenticator::Certificate)
        ));
    }

    #[test]
    fn a_certificate_is_as_good_as_a_password_and_nothing_else_is_as_good_as_a_certificate() {
        let certified = peer("192.0.2.7", Channel::Certified);
        assert!(matches!(
            htpasswd().at_once(&certified, &request(false)),
            Some(Ok(()))
        ));
        let access = Authenticator::new(
            &Auth::Certificate,
            &AccessMetrics::default(),
            &Panics::default(),
        )
        .unwrap();
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
        assert!(
            Authenticator::new(&Auth::Open, &AccessMetrics::default(), &Panics::default())
                .is_none()
        );
    }
}
