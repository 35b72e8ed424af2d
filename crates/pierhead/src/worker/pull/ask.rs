//! Asking for a bundle: until there is one, or it is clear that there will be none.

use std::thread;
use std::time::{Duration, Instant};

use http::{StatusCode, header};
use pierhead_bundle::api::{Ask, Progress, Stage};
use pierhead_oci::{ErrorCode, Reference};
use serde::Deserialize;

use super::super::http::{Answer, Body, Request};
use super::super::session::{Patience, Session};
use super::super::{Error, names};
use super::plain;

/// Between two questions whether it is ready; the server says it, within these.
const POLL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// An image whose progress has not changed for so long is stuck: the largest layers are worked on for minutes in one stage.
const STUCK: Duration = Duration::from_secs(10 * 60);
/// Nor is one waited for longer than this, whatever the server says of it: by layers it would be here by then.
const MOST: Duration = Duration::from_secs(30 * 60);

/// What a server says to a request for a bundle.
pub(in super::super) enum Answered {
    /// It comes.
    Bundle {
        /// Names it for later requests.
        etag: String,
        /// The bundle, or the part that was asked for.
        body: Body,
    },
    /// There is none, and the layers are to be pulled: why.
    None(String),
}

/// Asks once; a cut is the caller's to try again.
///
/// # Errors
/// Those of the HTTP exchange, a denied access, and [`Error::NotFound`].
pub(in super::super) fn once(
    session: &Session,
    image: &Reference,
    ask: &Ask,
) -> Result<Answered, Error> {
    let server = session.server().clone();
    let body = serde_json::to_vec(ask).map_err(|error| Error::Said(error.to_string()))?;
    let path = names::bundle(image);
    let answer = session.send(&Request::post(&path, "application/json", &body))?;
    match answer.status {
        StatusCode::OK => {
            let etag = answer.header(header::ETAG).map(str::to_owned);
            let media_type = answer.header(header::CONTENT_TYPE).unwrap_or_default();
            match etag {
                Some(etag) if media_type == pierhead_bundle::api::MEDIA_TYPE => {
                    let Answer { body, .. } = answer;
                    Ok(Answered::Bundle { etag, body })
                }
                _ => Ok(Answered::None(format!(
                    "{} answers with something else",
                    server.url()
                ))),
            }
        }
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::REQUEST_TIMEOUT
        | StatusCode::TOO_MANY_REQUESTS => Err(answer.refusal(&server, &image.to_string())),
        status if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
            let refusal = answer.refusal(&server, &image.to_string());
            let Error::Refused { code, .. } = &refusal else {
                return Err(refusal);
            };
            match (status, code) {
                (_, Some(ErrorCode::ManifestUnknown)) => {
                    return Err(plain::not_found(image, &server));
                }
                (
                    StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::NOT_IMPLEMENTED,
                    _,
                ) => {
                    // The endpoint or the image is missing. A request for the manifest tells which.
                    plain::exists(session, image)?;
                }
                _ => return Ok(Answered::None(refusal.to_string())),
            }
            Ok(Answered::None(format!(
                "{} offers no bundles",
                server.url()
            )))
        }
        _ => match answer.refusal(&server, &image.to_string()) {
            // The server has no bundles until its operator acts.
            refusal @ Error::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                code: Some(ErrorCode::Unsupported),
                ..
            } => Ok(Answered::None(refusal.to_string())),
            refusal => Err(refusal),
        },
    }
}

/// Waits until the server has a bundle ready, showing how far it is.
pub(in super::super) struct Waiting {
    patience: Patience,
    last: Option<Progress>,
    since: Instant,
    began: Instant,
    most: Duration,
}

impl Waiting {
    pub(in super::super) fn new() -> Self {
        Self {
            patience: Patience::new(),
            last: None,
            since: Instant::now(),
            began: Instant::now(),
            most: MOST,
        }
    }

    /// Why the layers are to be pulled instead of a bundle that is not ready yet, once that was waited for long enough.
    pub(in super::super) fn gives_up(&self, error: &Error) -> Option<String> {
        if self.began.elapsed() < self.most && (self.last.is_none() || self.since.elapsed() < STUCK)
        {
            return None;
        }
        let waits = matches!(
            error,
            Error::Refused {
                status: StatusCode::SERVICE_UNAVAILABLE,
                detail: Some(_),
                ..
            }
        );
        let minutes = self.began.elapsed().as_secs() / 60;
        waits.then(|| {
            format!("the server has not made a bundle of it ready within {minutes} minutes")
        })
    }

    /// Waits before asking again, unless [`Self::gives_up`].
    ///
    /// # Errors
    /// The error itself, when waiting does not help.
    pub(in super::super) fn after(
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
            return self.patience.after(error);
        };
        if self.gives_up(&error).is_some() {
            return Err(error);
        }
        if self.last.as_ref() != Some(progress) {
            (self.last, self.since) = (Some(*progress), Instant::now());
            self.patience.renew();
        }
        let what = match progress.stage {
            Stage::Wait => "waits its turn",
            Stage::Pull => "is pulled",
            Stage::Index => "is indexed",
            _ => "is made ready",
        };
        show(what, progress);
        let pause = retry_after.unwrap_or(Duration::from_secs(1));
        thread::sleep(pause.clamp(POLL.0, POLL.1));
        Ok(())
    }
}

/// The detail of an error body, if it is how far an image is.
pub(in super::super) fn progress(body: &[u8]) -> Option<Progress> {
    #[derive(Deserialize)]
    struct Body {
        errors: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        detail: Option<Progress>,
    }
    let body: Body = serde_json::from_slice(body).ok()?;
    body.errors.into_iter().find_map(|entry| entry.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_that_never_gets_ready_is_given_up_for_its_layers() {
        let refused = |detail| Error::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: None,
            message: "not ready".to_owned(),
            retry_after: None,
            detail,
        };
        let working = Some(Progress {
            stage: Stage::Wait,
            done: 0,
            total: 0,
        });
        let mut waiting = Waiting::new();
        assert!(waiting.gives_up(&refused(working)).is_none());
        waiting.most = Duration::ZERO;
        assert!(waiting.gives_up(&refused(working)).is_some());
        assert!(waiting.after(refused(working), &mut |_, _| {}).is_err());
        // Nothing says that there will be one: what the patience is for.
        assert!(waiting.gives_up(&refused(None)).is_none());
    }

    #[test]
    fn how_far_it_is_stands_in_the_detail() {
        let body = br#"{"errors":[{"code":"UNAVAILABLE","message":"x","detail":{"stage":"pull","done":1,"total":3}}]}"#;
        let expected = Progress {
            stage: Stage::Pull,
            done: 1,
            total: 3,
        };
        assert_eq!(progress(body), Some(expected));
        assert_eq!(
            progress(br#"{"errors":[{"code":"X","message":"x"}]}"#),
            None
        );
        assert_eq!(progress(b"<html>"), None);
    }
}
