//! Authenticates clients by the configured method: htpasswd file, client certificate or
//! pass-through. Caches the decisions.
//!
//! Clients need no credentials unless the configuration requires them. A cached decision costs one
//! keyed hash and one table lookup.

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

/// The configured method by which clients authenticate.
pub(crate) enum Authenticator {
    Certificate,
    Htpasswd(HtpasswdAuth),
    PassThrough(PassThrough),
    /// Denies all requests. Used when the system has no random numbers for keyed hashes.
    DenyAll,
}

impl Authenticator {
    /// Creates the authenticator of the configuration. `None` means that clients need no
    /// credentials. The call blocks, because it reads files. If a file of the configuration is
    /// unreadable, the authenticator denies all requests.
    pub(crate) fn new(auth: &Auth, metrics: &AccessMetrics, panics: &Panics) -> Option<Arc<Self>> {
        Self::with(auth, metrics, panics, KeyedHasher::new).map(Arc::new)
    }

    fn with(
        auth: &Auth,
        metrics: &AccessMetrics,
        panics: &Panics,
        hasher: impl FnOnce() -> Option<KeyedHasher>,
    ) -> Option<Self> {
        let with_hasher = |make: &dyn Fn(KeyedHasher) -> Self| {
            hasher().map_or_else(
                || {
                    tracing::error!("the system has no random numbers: all clients are refused");
                    Self::DenyAll
                },
                make,
            )
        };
        Some(match auth {
            Auth::Open => return None,
            Auth::Certificate => Self::Certificate,
            Auth::PassThrough {
                cache_ttl,
                anonymous,
            } => with_hasher(&|hasher| {
                Self::PassThrough(PassThrough::new(
                    *cache_ttl,
                    *anonymous,
                    hasher,
                    metrics.clone(),
                    panics.clone(),
                ))
            }),
            Auth::Htpasswd { file, cache_ttl } => with_hasher(&|hasher| {
                Self::Htpasswd(HtpasswdAuth::new(
                    file.clone(),
                    *cache_ttl,
                    hasher,
                    metrics.clone(),
                    panics.clone(),
                ))
            }),
        })
    }

    /// Reads the htpasswd file again before the next decision, if the file changed.
    pub(crate) fn recheck_file(&self) {
        if let Self::Htpasswd(logins) = self {
            logins.recheck_file();
        }
    }

    /// Returns the decision about a client if the decision is cached or needs no waiting. Does not
    /// allocate.
    pub(crate) fn cached_decision(
        &self,
        peer: &Peer,
        request: &Parts,
    ) -> Option<Result<(), Error>> {
        match self {
            Self::Certificate if peer.channel == Channel::Certified => Some(Ok(())),
            Self::Certificate => Some(Err(Error::NoCertificate)),
            // If client certificates are optional, a certificate replaces a password.
            Self::Htpasswd(_) if peer.channel == Channel::Certified => Some(Ok(())),
            Self::Htpasswd(_) if !peer.is_private() => Some(Err(Error::InsecurePassword)),
            Self::DenyAll => Some(Err(Error::Internal)),
            Self::PassThrough(_) => None,
            Self::Htpasswd(logins) => match request.headers.get(AUTHORIZATION) {
                None => Some(Err(Error::LoginRequired)),
                Some(header) => logins.is_known_right(header).then_some(Ok(())),
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

    fn request(has_credentials: bool) -> Parts {
        let mut request = http::Request::get("/v2/");
        if has_credentials {
            request = request.header(AUTHORIZATION, "Basic YW5uOnB3");
        }
        request.body(()).unwrap().into_parts().0
    }

    fn htpasswd() -> Arc<Authenticator> {
        let auth = Auth::Htpasswd {
            file: "/absent/users".into(),
            cache_ttl: Duration::from_secs(60),
        };
        Authenticator::new(&auth, &AccessMetrics::default(), &Panics::default()).unwrap()
    }

    /// Over plain TCP from another machine, the response must not be `LoginRequired`.
    /// `LoginRequired` has an authentication challenge, which makes clients send a password.
    #[test]
    fn passwords_are_accepted_over_tls_or_from_this_machine_only() {
        let access = htpasswd();
        let (cache_ttl, hasher) = (Duration::from_secs(60), KeyedHasher::new().unwrap());
        let pass_through = PassThrough::new(
            cache_ttl,
            true,
            hasher,
            AccessMetrics::default(),
            Panics::default(),
        );
        for address in ["192.0.2.7", "::ffff:192.0.2.7", "2001:db8::1"] {
            let plain = peer(address, Channel::Plain);
            for has_credentials in [true, false] {
                let decision = access.cached_decision(&plain, &request(has_credentials));
                assert!(
                    matches!(decision, Some(Err(Error::InsecurePassword))),
                    "{address} {has_credentials}"
                );
            }
            assert!(matches!(
                pass_through.credentials_of(&plain, &request(true)),
                Err(Error::InsecurePassword)
            ));
            assert!(matches!(
                pass_through.credentials_of(&plain, &request(false)),
                Ok(None)
            ));
            let tls = peer(address, Channel::Tls);
            assert!(matches!(
                access.cached_decision(&tls, &request(false)),
                Some(Err(Error::LoginRequired))
            ));
            assert!(
                access.cached_decision(&tls, &request(true)).is_none(),
                "the password is verified"
            );
            assert!(matches!(
                pass_through.credentials_of(&tls, &request(true)),
                Ok(Some(_))
            ));
        }
        for address in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            let here = peer(address, Channel::Plain);
            assert!(matches!(
                access.cached_decision(&here, &request(false)),
                Some(Err(Error::LoginRequired))
            ));
        }
    }

    #[test]
    fn all_clients_are_refused_without_random_numbers() {
        let pass_through = Auth::PassThrough {
            cache_ttl: Duration::from_secs(60),
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
            let decision = access.cached_decision(&peer("127.0.0.1", channel), &request(true));
            assert!(
                matches!(decision, Some(Err(Error::Internal))),
                "{channel:?}"
            );
        }
        // Authentication by certificate or pass-through caches no decisions here, so the
        // authenticators need no hasher.
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
    fn a_certificate_replaces_a_password_and_a_password_does_not_replace_a_certificate() {
        let certified = peer("192.0.2.7", Channel::Certified);
        assert!(matches!(
            htpasswd().cached_decision(&certified, &request(false)),
            Some(Ok(()))
        ));
        let access = Authenticator::new(
            &Auth::Certificate,
            &AccessMetrics::default(),
            &Panics::default(),
        )
        .unwrap();
        assert!(matches!(
            access.cached_decision(&certified, &request(false)),
            Some(Ok(()))
        ));
        for channel in [Channel::Plain, Channel::Tls] {
            let decision = access.cached_decision(&peer("127.0.0.1", channel), &request(true));
            assert!(
                matches!(decision, Some(Err(Error::NoCertificate))),
                "{channel:?}"
            );
        }
        assert!(
            Authenticator::new(&Auth::Open, &AccessMetrics::default(), &Panics::default())
                .is_none()
        );
    }
}
