//! Requests a bundle, and waits until the server has prepared it.

#[cfg(test)]
mod tests;

use std::thread;
use std::time::{Duration, Instant};

use http::{StatusCode, header};
use pierhead_bundle::api::{BundleQuery, Progress, Stage};
use pierhead_oci::{ErrorCode, Reference};

use crate::http::{Body, Request, Response, RetryBackoff, Session};
use crate::{Error, registry, request_path};

/// Minimum and maximum pause between two polls. Within these limits, the server chooses the pause
/// by `Retry-After`.
const POLL_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Maximum time in which the server makes no progress with a bundle. For the largest layers, one
/// stage of the preparation takes minutes.
const MAX_STAGNATION: Duration = Duration::from_secs(10 * 60);
/// Maximum wait for a bundle. After this time, a pull of layers would be faster.
const MAX_WAIT: Duration = Duration::from_secs(30 * 60);

/// The response of a server to a request for a bundle.
pub(crate) enum BundleResponse {
    /// The server sends the bundle.
    Bundle {
        /// The `ETag` that identifies the bundle in later requests.
        etag: String,
        /// The body of the response: the bundle, or the requested part of it.
        body: Body,
    },
    /// The server has no bundle, for this reason. The client pulls layers instead.
    Unavailable(String),
}

/// Requests a bundle once. If the connection breaks, the caller has to retry.
///
/// # Errors
/// Errors of the HTTP exchange, denied access, and [`Error::NotFound`].
pub(crate) fn request_bundle(
    session: &Session,
    image: &Reference,
    query: &BundleQuery,
) -> Result<BundleResponse, Error> {
    let server = session.server().clone();
    let body = serde_json::to_vec(query)
        .map_err(|error| Error::file("cannot encode the request")(error.into()))?;
    let path = request_path::bundle(image);
    let response = session.send(&Request::post(&path, "application/json", &body))?;
    match response.status {
        StatusCode::OK => {
            let etag = response.header(header::ETAG).map(str::to_owned);
            let media_type = response.header(header::CONTENT_TYPE).unwrap_or_default();
            match etag {
                Some(etag) if media_type == pierhead_bundle::api::MEDIA_TYPE => {
                    let Response { body, .. } = response;
                    Ok(BundleResponse::Bundle { etag, body })
                }
                _ => Ok(BundleResponse::Unavailable(format!(
                    "{} sent no bundle",
                    server.url()
                ))),
            }
        }
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_MANY_REQUESTS => Err(response.into_error(&server, &image.to_string())),
        status if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
            let error = response.into_error(&server, &image.to_string());
            let Error::Refused { code, .. } = &error else {
                return Err(error);
            };
            match (status, code) {
                (_, Some(ErrorCode::ManifestUnknown)) => {
                    return Err(registry::not_found(image, &server));
                }
                (
                    StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::NOT_IMPLEMENTED,
                    _,
                ) => {
                    // The server lacks the image, or does not support bundles. A request for the
                    // manifest tells which of the two is true.
                    registry::check_manifest(session, image)?;
                }
                _ => return Ok(BundleResponse::Unavailable(error.to_string())),
            }
            Ok(BundleResponse::Unavailable(format!(
                "{} offers no bundles",
                server.url()
            )))
        }
        _ => match response.into_error(&server, &image.to_string()) {
            // The server can make no bundle until its operator acts.
            error @ Error::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                code: Some(ErrorCode::Unsupported),
                ..
            } => Ok(BundleResponse::Unavailable(error.to_string())),
            error => Err(error),
        },
    }
}

/// Waits between polls until the server has prepared a bundle, up to time limits.
pub(crate) struct ReadinessWait {
    backoff: RetryBackoff,
    last: Option<Progress>,
    last_change: Instant,
    started: Instant,
    max_wait: Duration,
}

impl ReadinessWait {
    pub(crate) fn new() -> Self {
        Self {
            backoff: RetryBackoff::new(),
            last: None,
            last_change: Instant::now(),
            started: Instant::now(),
            max_wait: MAX_WAIT,
        }
    }

    /// If a time limit has passed while the server prepares the bundle, returns this as the reason
    /// to pull layers instead.
    pub(crate) fn timed_out(&self, error: &Error) -> Option<String> {
        let is_stuck = self.last.is_some() && self.last_change.elapsed() >= MAX_STAGNATION;
        if self.started.elapsed() < self.max_wait && !is_stuck {
            return None;
        }
        let is_preparing = matches!(
            error,
            Error::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                detail: Some(_),
                ..
            }
        );
        let minutes = self.started.elapsed().as_secs() / 60;
        is_preparing
            .then(|| format!("the server has not prepared a bundle within {minutes} minutes"))
    }

    /// Waits before the next poll. Calls `show` with the stage of the preparation as text, and with
    /// the progress of this stage.
    ///
    /// # Errors
    /// Returns `error` if waiting cannot help, or after a time limit ([`Self::timed_out`]).
    pub(crate) fn wait(
        &mut self,
        error: Error,
        show: &mut dyn FnMut(&str, &Progress),
    ) -> Result<(), Error> {
        let Error::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            retry_after,
            detail: Some(progress),
            ..
        } = &error
        else {
            return self.backoff.wait(error);
        };
        if self.timed_out(&error).is_some() {
            return Err(error);
        }
        if self.last.as_ref() != Some(progress) {
            (self.last, self.last_change) = (Some(*progress), Instant::now());
            self.backoff.reset();
        }
        let stage = match progress.stage {
            Stage::Wait => "is queued",
            Stage::Pull => "is pulled",
            Stage::Index => "is indexed",
            _ => "is prepared",
        };
        show(stage, progress);
        let pause = retry_after.unwrap_or(Duration::from_secs(1));
        thread::sleep(pause.clamp(POLL_PAUSE.0, POLL_PAUSE.1));
        Ok(())
    }
}
