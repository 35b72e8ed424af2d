//! Admits requests: applies the authenticator of the configuration to one request.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_oci::Endpoint;

use crate::access::authenticator::Access;
use crate::context::Inner;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::refusal_log::Refusal;

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

impl Access {
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
