//! Admits requests: applies the authenticator of the configuration to one request.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_oci::Endpoint;

use crate::access::authenticator::Authenticator;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::refusal_log::Refusal;

/// Lets a request in or says why not; with whose eyes to look, when they are the client's own. Costs one
/// comparison while everybody is let in.
pub(crate) async fn admit(
    context: &Arc<RequestContext>,
    peer: &Peer,
    request: &Parts,
    endpoint: &Endpoint,
    deadline: Deadline,
) -> Result<Option<Arc<RequestContext>>, Error> {
    let Some(access) = context.access() else {
        return Ok(None);
    };
    match access.at_once(peer, request) {
        Some(verdict) => verdict.map(|()| None),
        None => {
            let access = access.clone();
            Box::pin(async move {
                match &*access {
                    Authenticator::PassThrough(pass_through) => {
                        let client_context =
                            pass_through.admit(context, peer, request, endpoint, deadline);
                        client_context.await.map(Some)
                    }
                    _ => access.ask(context, peer, request).await.map(|()| None),
                }
            })
            .await
        }
    }
}

/// Checks who sends a request before its body is read. Pass-through only checks that there is a login, if one is needed:
/// the body names the image that the upstream is asked about.
pub(crate) async fn admit_body(
    context: &Arc<RequestContext>,
    peer: &Peer,
    request: &Parts,
) -> Result<(), Error> {
    let Some(access) = context.access() else {
        return Ok(());
    };
    if let Authenticator::PassThrough(pass_through) = &**access {
        return pass_through.credentials(peer, request).map(drop);
    }
    let Some(verdict) = access.at_once(peer, request) else {
        let deadline = Deadline::new(context.config.load().answer_within);
        let asked = Box::pin(access.ask(context, peer, request));
        return match tokio::time::timeout_at(deadline.end(), asked).await {
            Ok(verdict) => verdict,
            Err(_) => Err(Error::Timeout),
        };
    };
    verdict
}

/// Logs no user name, since users type passwords into the wrong field.
fn note_refused_login(context: &RequestContext, client: IpAddr, error: &Error) {
    let event = "a login was refused";
    let refusal = Refusal {
        event,
        cause: error.cause(),
        client: Some(client),
        registry: None,
    };
    if context.refusals.is_new(&refusal, (), error) {
        tracing::info!(%client, "{event}");
    }
}

impl Authenticator {
    /// The verdict that [`Self::at_once`] does not know.
    async fn ask(
        &self,
        context: &RequestContext,
        peer: &Peer,
        request: &Parts,
    ) -> Result<(), Error> {
        match self {
            Self::Htpasswd(logins) => {
                let header = request
                    .headers
                    .get(AUTHORIZATION)
                    .ok_or(Error::LoginRequired)?;
                let verdict = logins.ask(header, peer.address).await;
                if let Err(error @ Error::LoginRequired) = &verdict {
                    note_refused_login(context, peer.address, error);
                }
                verdict
            }
            Self::Certificate => Err(Error::NoCertificate),
            Self::PassThrough(_) | Self::DenyAll => Err(Error::Internal),
        }
    }
}
