//! Probes every host of an upstream for `pierhead doctor`: whether the host responds and accepts
//! the credentials. Also checks for `/readyz` that one host responds.

use std::time::{Duration, Instant, SystemTime};

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

/// The result of probing one host.
#[derive(Clone, Debug)]
pub struct HostProbe {
    /// The URL of the host.
    pub address: String,
    /// Whether credentials are configured for the host.
    pub has_credentials: bool,
    /// The time until the response or the failure.
    pub elapsed: Duration,
    /// The response of the host, or the failure.
    pub result: Result<ProbeResponse, Error>,
}

/// The response of a host to `GET /v2/`.
#[derive(Clone, Debug)]
pub struct ProbeResponse {
    /// The status code, after authentication if the host demanded authentication.
    pub status: u16,
    /// Whether the host demanded authentication for `/v2/`. A registry may demand authentication
    /// only for its repositories.
    pub demands_authentication: bool,
    /// The time in the `Date` header of the response.
    pub date: Option<SystemTime>,
}

/// Probes all hosts in parallel, even those whose circuit breaker is open. The results change no
/// circuit breaker.
pub(crate) async fn all(candidates: &Candidates) -> Vec<HostProbe> {
    // The probe requests a token for the right to pull one repository, which is the smallest right
    // that a token server grants.
    let Ok(repository) = "library/hello-world".parse::<Repository>() else {
        return Vec::new();
    };
    let repository = &repository;
    let each = candidates.sessions().map(|session| async move {
        let started = Instant::now();
        let result = one(&session, repository).await;
        HostProbe {
            address: session.base.clone(),
            has_credentials: session.credentials().is_some(),
            elapsed: started.elapsed(),
            result,
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
    let headers = first.http.headers();
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let mut status = first.http.status();
    let demands_authentication = status == StatusCode::UNAUTHORIZED;
    settle(first.http).await;
    if demands_authentication {
        let again =
            authenticate::request(session, RequestKind::Ping, &get, uri, none, repository).await?;
        status = again.http.status();
        settle(again.http).await;
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
    let response = follow(session, RequestKind::Ping, &get, uri, &none, Bytes::new()).await?;
    if response.http.status().is_server_error() {
        return Err(refusal(session, &response));
    }
    settle(response.http).await;
    Ok(())
}
