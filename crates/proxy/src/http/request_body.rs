//! Reads request bodies within limits of memory and time. Only the bundle and trace endpoints
//! accept request bodies.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method};
use http_body::Body;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use pierhead_bundle::api::MAX_DOCUMENT;
use tokio::time::Instant;

use crate::access::admit::admit_before_body;
use crate::context::RequestContext;
use crate::error::Error;
use crate::http::peer::Peer;
use crate::http::respond::JSON;
use crate::limits::client_usage::ClientUsage;
use crate::limits::limit::Limit;
use crate::limits::memory::{MAX_UNCOUNTED, MemoryReservation};
use crate::limits::resource_limits::ResourceLimits;

/// Maximum bytes of a request body.
pub(crate) const MAX_BODY: usize = MAX_DOCUMENT;

/// Bytes of a request body for which pierhead reserves memory in one step. The bytes of each step
/// must arrive within `client_stall_timeout`.
const STEP_BYTES: usize = 16 << 10;

/// Whether a POST to that path may have a body. The path is compared without decoding. Requests
/// with another spelling of the path go to hyper, which serves or refuses them.
pub(crate) fn accepts_body(path: &str) -> bool {
    path.ends_with("/_pierhead/bundle") || path.ends_with("/_pierhead/trace")
}

/// Parses a `Content-Length` value, which must consist of digits only.
pub(crate) fn length(value: &HeaderValue) -> Option<usize> {
    let text = value.to_str().ok()?;
    let has_digits_only = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    has_digits_only.then(|| text.parse().ok()).flatten()
}

/// Whether the content type is JSON. A web page of another origin cannot send this type without a
/// CORS preflight.
pub(crate) fn is_json(parts: &Parts) -> bool {
    let value = parts.headers.get(CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = value.split(';').next().unwrap_or("");
    essence.trim().eq_ignore_ascii_case(JSON)
}

/// Limits the memory and the time that a request body takes while it arrives:
///
/// 1. Memory is reserved in steps when the bytes arrive, not when the head announces their number.
/// 2. Each step must arrive within `client_stall_timeout`, and the whole body within
///    `client_head_timeout`.
pub(crate) struct BodyLimits<'a> {
    limits: &'a ResourceLimits,
    client: &'a Arc<ClientUsage>,
    reservation: Option<MemoryReservation>,
    /// Bytes for which memory is reserved. A small number of bytes needs no reservation.
    reserved: usize,
    /// Maximum bytes of the whole body.
    max_len: usize,
    /// Number of bytes that must have arrived by `step_end`.
    step: usize,
    step_end: Instant,
    end: Instant,
    stall: Duration,
}

impl<'a> BodyLimits<'a> {
    /// Creates the limits of a body that begins now and has at most `max_len` bytes.
    pub(crate) fn new(context: &'a RequestContext, peer: &'a Peer, max_len: usize) -> Self {
        let config = context.config();
        let (now, stall) = (Instant::now(), config.client_stall_timeout);
        Self {
            limits: &context.limits,
            client: &peer.client,
            reservation: None,
            reserved: MAX_UNCOUNTED,
            max_len,
            step: STEP_BYTES,
            step_end: now + stall,
            end: now + config.client_head_timeout,
            stall,
        }
    }

    /// Records that `bytes` bytes of the body have arrived so far.
    pub(crate) fn arrived(&mut self, bytes: usize) -> Result<(), Limit> {
        if bytes >= self.step {
            self.step = bytes + STEP_BYTES;
            self.step_end = Instant::now() + self.stall;
        }
        if bytes <= self.reserved {
            return Ok(());
        }
        // The reservation doubles each time, so that a body is copied a constant number of times.
        let reserved = bytes.max(2 * self.reserved).next_multiple_of(STEP_BYTES);
        let reserved = reserved.min(self.max_len).max(bytes);
        match &mut self.reservation {
            Some(reservation) => self.limits.grow(reservation, reserved - self.reserved)?,
            none => *none = Some(self.limits.reserve(self.client, reserved)?),
        }
        self.reserved = reserved;
        Ok(())
    }

    /// Makes room for `more` bytes in `buffer`. The new buffer has the reserved size, or the size
    /// of its contents plus `more`. The old buffer exists until its contents are copied.
    /// `BytesMut::reserve` is not used, because `BytesMut::reserve` would double the buffer without
    /// a reservation of memory.
    pub(crate) fn make_room(&self, buffer: &mut BytesMut, more: usize) {
        let len = buffer.len() + more;
        if buffer.capacity() < len {
            let mut larger = BytesMut::with_capacity(len.max(self.reserved));
            larger.extend_from_slice(buffer);
            *buffer = larger;
        }
    }

    /// Awaits the next bytes of the body.
    ///
    /// # Errors
    /// [`Error::BodyTimeout`] if the bytes do not arrive in time.
    pub(crate) async fn in_time<T>(&self, bytes: impl Future<Output = T>) -> Result<T, Error> {
        let due = self.step_end.min(self.end);
        let arrived = tokio::time::timeout_at(due, bytes).await;
        arrived.map_err(|_| Error::BodyTimeout)
    }

    /// Attaches the memory reservation to the complete body. The reservation ends when the last
    /// reference to the body is dropped.
    pub(crate) fn attach_to(self, body: Bytes) -> Bytes {
        match self.reservation {
            Some(reservation) => Arc::new(reservation).attach(body),
            None => body,
        }
    }
}

/// Authenticates the client, then reads the request body if the request may have one. Reads nothing
/// otherwise.
pub(crate) async fn read<B>(
    context: &Arc<RequestContext>,
    peer: &Peer,
    parts: &Parts,
    body: B,
) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
    if parts.method != Method::POST || !accepts_body(parts.uri.path()) {
        return Ok(Bytes::new());
    }
    let len = match parts.headers.get(CONTENT_LENGTH) {
        Some(value) => length(value).unwrap_or(usize::MAX),
        // The length of a chunked body is not known before its end.
        None => MAX_BODY,
    };
    if len > MAX_BODY {
        return Err(Limit::Body.into());
    }
    admit_before_body(context, peer, parts).await?;
    let mut body_limits = BodyLimits::new(context, peer, len);
    let mut body = pin!(Limited::new(body, len));
    let mut bytes = BytesMut::new();
    loop {
        let frame = match body_limits.in_time(body.frame()).await? {
            None => return Ok(body_limits.attach_to(bytes.freeze())),
            Some(Ok(frame)) => frame,
            Some(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(Limit::Body.into());
            }
            Some(Err(_)) => {
                let why = "the body of the request is incomplete, or its chunks are malformed";
                return Err(Error::BadRequest(why.into()));
            }
        };
        if let Ok(data) = frame.into_data() {
            body_limits.arrived(bytes.len() + data.len())?;
            body_limits.make_room(&mut bytes, data.len());
            bytes.extend_from_slice(&data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::limit::Limit;

    #[test]
    fn a_body_takes_no_more_memory_than_is_reserved() {
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 1 << 20);
        let policy = Box::new(pierhead_eviction::Lru::default());
        let cache = pierhead_cache::Cache::open(config, policy).unwrap();
        let remote = pierhead_remote::Client::new(pierhead_remote::Config::default()).unwrap();
        let proxy = crate::proxy::Proxy::new(cache, remote, crate::config::Config::default());
        let context = proxy.current();
        let client = context.limits.client([10, 0, 0, 1].into());
        let peer = Peer::refused(([10, 0, 0, 1], 1).into(), client, Limit::UpstreamRequests);
        let mut body_limits = BodyLimits::new(&context, &peer, MAX_BODY);
        let mut bytes = BytesMut::new();
        for frame in [100, 5_000, 16_000, 60_000, 7, 16_384, 300_000] {
            body_limits.arrived(bytes.len() + frame).unwrap();
            body_limits.make_room(&mut bytes, frame);
            bytes.extend_from_slice(&vec![7; frame]);
            let (capacity, reserved) = (bytes.capacity(), body_limits.reserved);
            assert!(
                capacity <= reserved,
                "{capacity} bytes, {reserved} reserved"
            );
        }
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
