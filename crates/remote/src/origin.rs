//! One upstream: where it is, what may be reached on its behalf, and what is remembered of it.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Uri;
use pierhead_oci::Registry;
use tokio::sync::Semaphore;

use crate::authorize::Memory;
use crate::bandwidth::Bandwidth;
use crate::distrust::Distrust;
use crate::exchange::Http;
use crate::fetches::Fetches;
use crate::guest::Guest;
use crate::health::Health;
use crate::metrics::UpstreamMetrics;
use crate::retry::Budget;
use crate::token::Tokens;
use crate::{Credentials, Error, Untrusted};

/// Time limits of an exchange; see [`Config`](crate::Config).
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) header_timeout: Duration,
    pub(crate) stall_timeout: Duration,
    /// Bytes a second.
    pub(crate) minimum_rate: u64,
}

/// What all upstreams share.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) tokens: Tokens,
    pub(crate) guest_tokens: Tokens,
    pub(crate) helper_folders: Vec<PathBuf>,
    pub(crate) fetches: Arc<Fetches>,
    /// See [`crate::room`].
    pub(crate) documents: Arc<Semaphore>,
    pub(crate) bandwidth: Arc<Bandwidth>,
}

/// One address of an upstream, asked in whose name.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) place: Arc<Place>,
    /// `None`: the configured login.
    pub(crate) guest: Option<Arc<Guest>>,
}

impl Deref for Origin {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Origin {
    /// Whom to log in as.
    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match &self.guest {
            Some(guest) => guest.credentials.as_ref(),
            None => self.place.credentials.as_ref(),
        }
    }

    /// Where the tokens of this login are kept: guests, who may come in any number, drive out each
    /// other's and never ours.
    pub(crate) fn tokens(&self) -> &Tokens {
        match self.guest {
            Some(_) => &self.shared.guest_tokens,
            None => &self.shared.tokens,
        }
    }
}

/// One address of an upstream.
pub(crate) struct Place {
    pub(crate) name: Registry,
    /// Scheme, host, port and path prefix, without a slash at the end.
    pub(crate) base: String,
    pub(crate) http: Http,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) budget: Budget,
    pub(crate) metrics: UpstreamMetrics,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) health: Arc<Health>,
    pub(crate) distrust: Distrust,
    /// Run by others than the registry: sees no login of a client, and its 404 is no verdict.
    pub(crate) mirror: bool,
    /// Said instead of why the name is refused, whether it is missing or internal.
    pub(crate) refusal: Option<String>,
    pub(crate) shared: Arc<Shared>,
}

impl Place {
    /// The URL of a path that begins with `/v2/`.
    pub(crate) fn url(&self, path: &str) -> Result<Uri, Error> {
        let text = format!("{}{path}", self.base);
        text.parse()
            .map_err(|_| self.forbidden(format!("{text} is no URL")))
    }

    pub(crate) fn protocol(&self, what: impl Into<String>) -> Error {
        Error::Protocol {
            upstream: self.name.to_string(),
            what: what.into(),
        }
    }

    pub(crate) fn transport(&self, what: impl Into<String>) -> Error {
        self.untrusted(what, None)
    }

    pub(crate) fn untrusted(&self, what: impl Into<String>, untrusted: Option<Untrusted>) -> Error {
        Error::Transport {
            upstream: self.name.to_string(),
            what: what.into(),
            untrusted,
        }
    }

    pub(crate) fn forbidden(&self, what: impl Into<String>) -> Error {
        Error::Forbidden {
            upstream: self.name.to_string(),
            what: self.refusal.clone().unwrap_or_else(|| what.into()),
        }
    }

    pub(crate) fn no_such_host(&self, what: impl Into<String>) -> Error {
        Error::NoSuchHost {
            upstream: self.name.to_string(),
            what: self.refusal.clone().unwrap_or_else(|| what.into()),
        }
    }
}
