//! Client authentication and authorization, cached.
//!
//! Clients need no credentials unless the configuration demands them. A cached decision costs one keyed
//! hash and one table lookup.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_host::Panics;

use crate::access::htpasswd_auth::Logins;
use crate::access::metrics::Metrics;
use crate::access::pass_through::Guests;
use crate::access::sealer::Sealer;
use crate::config::Auth;
use crate::error::Error;
use crate::http::peer::{Channel, Peer};

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
    pub(crate) fn at_once(&self, peer: &Peer, request: &Parts) -> Option<Result<(), Error>> {
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::limits::client::Client;
    use crate::limits::connections::Activity;

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
