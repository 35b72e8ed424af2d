//! The bodies of requests: only two endpoints take one, and it is small.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use pierhead_bundle::api::MAX_DOCUMENT;

use crate::Error;
use crate::answer::Peer;
use crate::limits::Limit;
use crate::respond::JSON;
use crate::service::Common;

/// Most bytes of a body.
pub(crate) const MAX: usize = MAX_DOCUMENT;

/// Whether a POST to that path may have a body. Nothing is decoded: whoever writes it in another way is read by hyper,
/// or refused.
pub(crate) fn takes(path: &str) -> bool {
    path.ends_with("/_pierhead/bundle") || path.ends_with("/_pierhead/trace")
}

/// A length in digits only.
pub(crate) fn length(value: &HeaderValue) -> Option<usize> {
    let text = value.to_str().ok()?;
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// Whether it is said to be JSON: what a page of another origin cannot send without asking first.
pub(crate) fn is_json(parts: &Parts) -> bool {
    let value = parts.headers.get(CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = value.split(';').next().unwrap_or("");
    essence.trim().eq_ignore_ascii_case(JSON)
}

/// Reads the body of a request that may have one, within the time that a head may take; of all others nothing.
pub(crate) async fn read<B>(
    common: &Common,
    peer: &Peer,
    parts: &Parts,
    body: B,
) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    if parts.method != Method::POST || !takes(parts.uri.path()) {
        return Ok(Bytes::new());
    }
    let len = match parts.headers.get(CONTENT_LENGTH) {
        Some(said) => length(said).unwrap_or(usize::MAX),
        // In chunks: it may become as long as any.
        None => MAX,
    };
    if len > MAX {
        return Err(Limit::Body.into());
    }
    let held = common.limits.hold(&peer.client, len)?;
    let collected = Limited::new(body, len).collect();
    // Over all of it: whoever sends a byte now and then gains nothing.
    let limit = common.config.load().client_head;
    match tokio::time::timeout(limit, collected).await {
        Err(_) => Err(Error::SlowBody),
        Ok(Ok(collected)) => Ok(held.around(collected.to_bytes())),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Limit::Body.into()),
        Ok(Err(_)) => Err(Error::Question(
            "the body is cut, or its chunks are malformed".into(),
        )),
    }
}
