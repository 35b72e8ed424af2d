//! A look at every address of an upstream, for people: whether it answers, and whether our login works there.

use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::DATE;
use http::{HeaderMap, Method, StatusCode};
use pierhead_oci::Repository;

use crate::Error;
use crate::authorize;
use crate::exchange::{follow, settle};
use crate::failover::Addresses;
use crate::metrics::Kind;
use crate::origin::Origin;

/// One address.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Its URL.
    pub address: String,
    /// Whether a login is configured for it.
    pub has_login: bool,
    /// What came of it.
    pub result: Result<Answered, Error>,
}

/// It answered `GET /v2/`.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The status, after logging in where that was asked for.
    pub status: u16,
    /// It asked for a login first; a registry may want none here and one for its repositories.
    pub asked_to_log_in: bool,
    /// Its clock.
    pub date: Option<SystemTime>,
}

/// All at once, those that are known to be down too. What comes of it changes no breaker.
pub(crate) async fn all(addresses: &Addresses) -> Vec<Probe> {
    // The right to pull some repository is the smallest that a token server gives.
    let Ok(repository) = "library/hello-world".parse::<Repository>() else {
        return Vec::new();
    };
    let repository = &repository;
    let each = addresses.everyone().map(|origin| async move {
        Probe {
            address: origin.base.clone(),
            has_login: origin.credentials().is_some(),
            result: one(&origin, repository).await,
        }
    });
    join_all(each).await
}

async fn one(origin: &Origin, repository: &Repository) -> Result<Answered, Error> {
    let uri = origin.url("/v2/")?;
    let (get, none) = (Method::GET, HeaderMap::new());
    let first = follow(origin, Kind::Ping, &get, uri.clone(), &none, Bytes::new()).await?;
    let headers = first.response.headers();
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| httpdate::parse_http_date(date).ok());
    let mut status = first.response.status();
    let asked_to_log_in = status == StatusCode::UNAUTHORIZED;
    settle(first.response).await;
    if asked_to_log_in {
        let again = authorize::request(origin, Kind::Ping, &get, uri, none, repository).await?;
        status = again.response.status();
        settle(again.response).await;
    }
    Ok(Answered {
        status: status.as_u16(),
        asked_to_log_in,
        date,
    })
}
