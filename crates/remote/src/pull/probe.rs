//! A look at every host of an upstream for people: whether it responds, and whether our credentials work.

use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::DATE;
use http::{HeaderMap, Method, StatusCode};
use pierhead_oci::Repository;

use crate::auth::authenticate;
use crate::error::Error;
use crate::exchange::{follow, refusal, settle};
use crate::metrics::RequestKind;
use crate::upstream::failover::Candidates;
use crate::upstream::session::Session;

/// One host.
#[derive(Clone, Debug)]
pub struct HostProbe {
    /// Its URL.
    pub address: String,
    /// Whether credentials are configured for it.
    pub has_credentials: bool,
    /// The response, or why there is none.
    pub result: Result<ProbeResponse, Error>,
}

/// The response to `GET /v2/`.
#[derive(Clone, Debug)]
pub struct ProbeResponse {
    /// The status, after authentication if the host demanded it.
    pub status: u16,
    /// Whether the host demanded authentication. A registry may demand none here and some for its repositories.
    pub demands_authentication: bool,
    /// Its `Date`.
    pub date: Option<SystemTime>,
}

/// Asks all hosts at once, those with an open circuit too. The results change no circuit.
pub(crate) async fn all(candidates: &Candidates) -> Vec<HostProbe> {
    // The right to pull one repository is the smallest that a token server grants.
    let Ok(repository) = "library/hello-world".parse::<Repository>() else {
        return Vec::new();
    };
    let repository = &repository;
    let each = candidates.sessions().map(|session| async move {
        HostProbe {
            address: session.base.clone(),
            has_credentials: session.credentials().is_some(),
            result: one(&session, repository).await,
        }
    });
    join_all(each).await
}

async fn one(session: &Session, repository: &Repository) -> Result<ProbeResponse, Error> {
    let uri = session.url("/v2/")?;
    let (get, none) = (Method::GET, HeaderMap::new());
    let first = follow(
        session,
        RequestKind::Ping,
        &get,
        uri.clone(),
        &none,
        Bytes::new(),
    )
    .await?;
    let headers = first.response.headers();
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let mut status = first.response.status();
    let demands_authentication = status == StatusCode::UNAUTHORIZED;
    settle(first.response).await;
    if demands_authentication {
        let again =
            authenticate::request(session, RequestKind::Ping, &get, uri, none, repository).await?;
        status = again.response.status();
        settle(again.response).await;
    }
    Ok(ProbeResponse {
        status: status.as_u16(),
        demands_authentication,
        date,
    })
}

/// Whether the host responds to `GET /v2/` with a status below 500.
pub(crate) async fn ping(session: &Session) -> Result<(), Error> {
    let uri = session.url("/v2/")?;
    let (get, none) = (Method::GET, HeaderMap::new());
    let answer = follow(session, RequestKind::Ping, &get, uri, &none, Bytes::new()).await?;
    if answer.response.status().is_server_error() {
        return Err(refusal(session, &answer));
    }
    settle(answer.response).await;
    Ok(())
}
