//! Admits or refuses requests: checks the client's credentials by the configured authentication
//! method.

use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;
use http::header::AUTHORIZATION;
use http::request::Parts;
use pierhead_oci::Endpoint;

use crate::access::authenticator::Authenticator;
use crate::access::htpasswd_auth::NamedUser;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::refusal_log::Refusal;

/// Admits a request, or returns the reason of the refusal. With pass-through (the upstream checks
/// the client's credentials), returns the context that uses the client's credentials. If clients
/// need no credentials, the check costs one comparison.
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
    match access.cached_decision(peer, request) {
        Some(decision) => decision.map(|()| None),
        None => {
            let access = access.clone();
            Box::pin(async move {
                match &*access {
                    Authenticator::PassThrough(pass_through) => {
                        let client_context =
                            pass_through.admit(context, peer, request, endpoint, deadline);
                        client_context.await.map(Some)
                    }
                    _ => access.decide(context, peer, request).await.map(|()| None),
                }
            })
            .await
        }
    }
}

/// Authenticates the client of a request that has a body, before the body is read. With
/// pass-through, only checks that the request has credentials if the configuration requires
/// credentials. The upstream decides later, because the body of such a request (a request for a
/// bundle) contains the name of the image.
pub(crate) async fn admit_before_body(
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
    let Some(decision) = access.cached_decision(peer, request) else {
        let deadline = Deadline::new(context.config().response_timeout);
        let decision = Box::pin(access.decide(context, peer, request));
        return match tokio::time::timeout_at(deadline.end(), decision).await {
            Ok(decision) => decision,
            Err(_) => Err(Error::Timeout),
        };
    };
    decision
}

/// Logs a refused login once for each client and user. The line has the user only if the htpasswd
/// file has this user, because people sometimes type the password into the field of the user.
fn log_refused_login(
    context: &RequestContext,
    client: IpAddr,
    (path, named): (&str, NamedUser),
    error: &Error,
) {
    let event = "login refused";
    let refusal = Refusal {
        event,
        cause: error.cause(),
        client: Some(client),
        registry: None,
    };
    let (user, why) = match &named {
        NamedUser::Known(user) => (Some(user), "the password does not match auth.htpasswd"),
        NamedUser::Unknown => (None, "auth.htpasswd does not have this user"),
        NamedUser::NoBasic => (None, "the header Authorization has no Basic credentials"),
    };
    if context.refusals.is_new(&refusal, &named, &why) {
        let status = StatusCode::UNAUTHORIZED.as_u16();
        tracing::info!(user, %client, path, status, error = why, "{event}");
    }
}

impl Authenticator {
    /// Decides whether a client may send requests, when [`Self::cached_decision`] has no decision.
    async fn decide(
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
                let decision = logins.decide(header, peer.address).await;
                if let Err(error @ Error::LoginRequired) = &decision {
                    let subject = (request.uri.path(), logins.named_user(header));
                    log_refused_login(context, peer.address, subject, error);
                }
                decision
            }
            Self::Certificate => Err(Error::NoCertificate),
            Self::PassThrough(_) | Self::DenyAll => Err(Error::Internal),
        }
    }
}
