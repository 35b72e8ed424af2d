//! The options of a fake registry, and the functions that start it.

use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::FakeRegistry;
use super::fault::Rules;
use super::listener::Listener;
use super::log::{Log, Role};
use super::settings::{Auth, Settings, TokenAuth};
use super::shared::{Bases, Shared};
use super::tls::{Authority, Identity};

/// The options with which a [`FakeRegistry`] is started.
#[derive(Default)]
pub struct Builder {
    settings: Settings,
    tls_names: Option<Vec<String>>,
    tls_years: Option<[i32; 2]>,
    authority: Option<Arc<Authority>>,
}

impl Builder {
    /// Uses TLS on all three ports, with a certificate for `localhost` and the loopback addresses.
    pub fn tls(self) -> Self {
        self.tls_for(&["localhost", "127.0.0.1", "::1"])
    }

    /// Uses TLS with a certificate for exactly these names.
    pub fn tls_for(mut self, names: &[&str]) -> Self {
        self.tls_names = Some(names.iter().map(|&name| name.to_owned()).collect());
        self
    }

    /// Uses TLS with an expired certificate.
    pub fn tls_expired(self) -> Self {
        self.tls_between(2020, 2021)
    }

    /// Uses TLS with a certificate that is valid from January 1 of `from` to January 1 of `to`.
    pub fn tls_between(mut self, from: i32, to: i32) -> Self {
        self.tls_years = Some([from, to]);
        self
    }

    /// Uses TLS with a certificate of this authority, and not of a new authority.
    pub fn authority(mut self, authority: Arc<Authority>) -> Self {
        self.authority = Some(authority);
        self
    }

    /// Changes the initial settings.
    pub fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Requires bearer tokens, as Docker Hub does. Every client gets a token.
    pub fn token_auth(self) -> Self {
        self.with(|settings| settings.auth = Auth::Token(TokenAuth::default()))
    }

    /// Requires basic authentication with the name and password of this user.
    pub fn basic_auth(self, user: &str, password: &str) -> Self {
        self.with(|settings| {
            settings.auth = Auth::Basic {
                user: user.to_owned(),
                password: password.to_owned(),
            }
        })
    }

    /// Starts the registry on three free loopback ports, which the system chooses.
    pub async fn start(self) -> FakeRegistry {
        self.start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// Starts the registry at `addr`. The token server and the CDN get free ports of the same IP
    /// address.
    pub async fn start_at(self, addr: SocketAddr) -> FakeRegistry {
        let tls = self.tls_names.map(|names| {
            let authority = self.authority.unwrap_or_else(|| Arc::new(Authority::new()));
            Identity::new(authority, &names, self.tls_years)
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shared = Arc::new(Shared {
            settings: Mutex::new(self.settings),
            store: Mutex::default(),
            rules: Rules::default(),
            log: Log::default(),
            issued: Mutex::default(),
            link_free_at: Mutex::new(Instant::now()),
            blobs_in_flight: AtomicUsize::new(0),
            peak_blobs_in_flight: AtomicUsize::new(0),
            tls,
            bases: OnceLock::new(),
        });
        let any = SocketAddr::new(addr.ip(), 0);
        let main = Listener::bind(addr, Role::Registry, Arc::clone(&shared));
        let tokens = Listener::bind(any, Role::Tokens, Arc::clone(&shared));
        let cdn = Listener::bind(any, Role::Cdn, Arc::clone(&shared));
        let base = |listener: &Listener| format!("{scheme}://{}", listener.addr());
        let bases = Bases {
            tokens: base(&tokens),
            cdn: base(&cdn),
        };
        assert!(
            shared.bases.set(bases).is_ok(),
            "a new registry has no addresses yet"
        );
        let registry = FakeRegistry {
            shared,
            main,
            tokens,
            cdn,
        };
        registry.restart().await;
        registry
    }
}
