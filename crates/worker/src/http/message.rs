//! HTTP requests and responses of a worker, and the conversion of an error response into an error.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use pierhead_bundle::api::Progress;
use pierhead_oci::{ErrorBody, ErrorCode};
use serde::Deserialize;

use super::body::Body;
use super::server::Server;
use crate::Error;

/// Maximum number of bytes that a worker reads of the body of an error response.
const MAX_ERROR_BODY: usize = 64 << 10;

/// A request to a server.
pub(crate) struct Request<'a> {
    /// The method, `GET` or `POST`.
    pub(super) method: &'static str,
    /// The path, with the query.
    pub(super) path: &'a str,
    /// Headers of this request. The connection adds the standard headers.
    pub(super) headers: &'a [(&'static str, String)],
    /// The body of a `POST`, sent with its length.
    pub(super) body: &'a [u8],
    /// The media type of the body.
    pub(super) media_type: &'static str,
}

impl<'a> Request<'a> {
    /// Creates a request without a body.
    pub(crate) fn get(path: &'a str, headers: &'a [(&'static str, String)]) -> Self {
        Self {
            method: "GET",
            path,
            headers,
            body: &[],
            media_type: "",
        }
    }

    /// Creates a request with a body.
    pub(crate) fn post(path: &'a str, media_type: &'static str, body: &'a [u8]) -> Self {
        Self {
            method: "POST",
            path,
            headers: &[],
            body,
            media_type,
        }
    }
}

/// A response whose head was received, and whose body can be read.
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Response {
    /// Returns the value of a header, if the response has it and the value is text.
    pub(crate) fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Converts an error response into an error with advice. Reads the body of the response. `what`
    /// names the requested object.
    pub(crate) fn into_error(self, server: &Server, what: &str) -> Error {
        let status = self.status;
        let retry_after = self
            .header(header::RETRY_AFTER)
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs);
        let bytes = self.body.all(MAX_ERROR_BODY).unwrap_or_default();
        let mut code = None;
        let reason = ErrorBody::parse(&bytes).map(|body| {
            code = body.errors.first().map(|entry| entry.code);
            let all: Vec<_> = body.errors.into_iter().map(|entry| entry.message).collect();
            all.join("; ")
        });
        let reason = reason.filter(|reason| !reason.is_empty());
        let url = server.url();
        let has_credentials = server.authorization().is_some();
        let advice = match status {
            StatusCode::UNAUTHORIZED if has_credentials => {
                "; the credentials are wrong: correct --user and --password-file"
            }
            StatusCode::UNAUTHORIZED => {
                "; log in with --user and --password-file, or `docker login`"
            }
            StatusCode::FORBIDDEN if has_credentials => "; this user has no permission to pull it",
            StatusCode::NOT_FOUND if code != Some(ErrorCode::Unsupported) => {
                "; check its name and tag"
            }
            _ => "",
        };
        let message = match reason {
            Some(reason) => format!("{url} refuses {what}: {reason} ({status}){advice}"),
            None => format!("{url} refuses {what}: {status}{advice}"),
        };
        Error::Refused {
            status,
            message,
            retry_after,
            detail: bundle_progress(&bytes),
            code,
        }
    }
}

/// Reads from the `detail` of an error document how far the server has prepared a bundle.
fn bundle_progress(body: &[u8]) -> Option<Progress> {
    #[derive(Deserialize)]
    struct ErrorDetails {
        errors: Vec<ErrorDetail>,
    }
    #[derive(Deserialize)]
    struct ErrorDetail {
        detail: Option<Progress>,
    }
    let body: ErrorDetails = serde_json::from_slice(body).ok()?;
    body.errors.into_iter().find_map(|entry| entry.detail)
}

#[cfg(test)]
mod tests {
    use pierhead_bundle::api::Stage;

    use super::*;

    #[test]
    fn the_detail_of_an_error_body_is_the_progress_of_a_bundle() {
        let body = br#"{"errors":[{"code":"UNAVAILABLE","message":"x","detail":{"stage":"pull","done":1,"total":3}}]}"#;
        let expected = Progress {
            stage: Stage::Pull,
            done: 1,
            total: 3,
        };
        assert_eq!(bundle_progress(body), Some(expected));
        let without = br#"{"errors":[{"code":"X","message":"x"}]}"#;
        assert_eq!(bundle_progress(without), None);
        assert_eq!(bundle_progress(b"<html>"), None);
    }
}
