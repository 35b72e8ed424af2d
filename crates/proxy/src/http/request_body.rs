//! The bodies of requests: only two endpoints take one, and it is small.

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

use crate::access::admit::admit_body;
use crate::context::{RequestContext, SharedState};
use crate::error::Error;
use crate::http::peer::Peer;
use crate::http::respond::JSON;
use crate::limits::client_usage::ClientUsage;
use crate::limits::limit::Limit;
use crate::limits::memory::{MAX_UNCOUNTED, MemoryReservation};
use crate::limits::resource_limits::ResourceLimits;

/// Most bytes of a body.
pub(crate) const MAX: usize = MAX_DOCUMENT;

/// Bytes that are counted at once, and that must arrive within `client_stall`.
const STEP: usize = 16 << 10;

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

/// A body on its way: bounds its memory and its time.
///
/// 1. Memory is counted in steps, when the bytes arrive, and not when the head announces them.
/// 2. Each step must arrive within `client_stall`, and the whole body within `client_head`.
pub(crate) struct BodyLimits<'a> {
    limits: &'a ResourceLimits,
    client: &'a Arc<ClientUsage>,
    held: Option<MemoryReservation>,
    /// Bytes that are counted.
    counted: usize,
    /// Bytes of the whole body at most.
    len: usize,
    /// Bytes that must have arrived by `step_end`.
    step: usize,
    step_end: Instant,
    end: Instant,
    stall: Duration,
}

impl<'a> BodyLimits<'a> {
    /// A body of at most `len` bytes begins now.
    pub(crate) fn new(shared: &'a SharedState, peer: &'a Peer, len: usize) -> Self {
        let config = shared.config.load();
        let (now, stall) = (Instant::now(), config.client_stall);
        Self {
            limits: &shared.limits,
            client: &peer.client,
            held: None,
            counted: MAX_UNCOUNTED,
            len,
            step: STEP,
            step_end: now + stall,
            end: now + config.client_head,
            stall,
        }
    }

    /// `bytes` of the body have arrived in all.
    pub(crate) fn arrived(&mut self, bytes: usize) -> Result<(), Limit> {
        if bytes >= self.step {
            self.step = bytes + STEP;
            self.step_end = Instant::now() + self.stall;
        }
        if bytes <= self.counted {
            return Ok(());
        }
        // Doubles, so that a body is copied a constant number of times.
        let counted = bytes.max(2 * self.counted).next_multiple_of(STEP);
        let counted = counted.min(self.len).max(bytes);
        match &mut self.held {
            Some(held) => self.limits.grow(held, counted - self.counted)?,
            none => *none = Some(self.limits.reserve(self.client, counted)?),
        }
        self.counted = counted;
        Ok(())
    }

    /// Makes room for `more` bytes in `buffer`. The new buffer has the counted bytes, or `more` beyond its contents; during
    /// the copy the old one exists, too. `BytesMut::reserve` would double the buffer without counting it.
    pub(crate) fn make_room(&self, buffer: &mut BytesMut, more: usize) {
        let len = buffer.len() + more;
        if buffer.capacity() < len {
            let mut larger = BytesMut::with_capacity(len.max(self.counted));
            larger.extend_from_slice(buffer);
            *buffer = larger;
        }
    }

    /// When the next bytes must have arrived.
    pub(crate) fn due(&self) -> Instant {
        self.step_end.min(self.end)
    }

    /// The body, counted until its last reference is gone.
    pub(crate) fn whole(self, body: Bytes) -> Bytes {
        match self.held {
            Some(held) => Arc::new(held).attach(body),
            None => body,
        }
    }
}

/// Reads the body of a request that may have one, from a client that proves who it is; of all others nothing.
pub(crate) async fn read<B>(
    context: &Arc<RequestContext>,
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
    admit_body(context, peer, parts).await?;
    let mut body_limits = BodyLimits::new(context, peer, len);
    let mut body = pin!(Limited::new(body, len));
    let mut bytes = BytesMut::new();
    loop {
        let frame = match tokio::time::timeout_at(body_limits.due(), body.frame()).await {
            Err(_) => return Err(Error::BodyTimeout),
            Ok(None) => return Ok(body_limits.whole(bytes.freeze())),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) if error.is::<LengthLimitError>() => {
                return Err(Limit::Body.into());
            }
            Ok(Some(Err(_))) => {
                let why = "the body is cut, or its chunks are malformed";
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
    fn a_body_takes_no_more_memory_than_is_counted() {
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 1 << 20);
        let policy = Box::new(pierhead_eviction::Lru::default());
        let cache = pierhead_cache::Cache::open(config, policy).unwrap();
        let remote = pierhead_remote::Client::new(pierhead_remote::Config::default()).unwrap();
        let proxy = crate::proxy::Proxy::new(cache, remote, crate::config::Config::default());
        let context = proxy.current();
        let client = context.limits.client([10, 0, 0, 1].into());
        let peer = Peer::refused(([10, 0, 0, 1], 1).into(), client, Limit::Fetches);
        let mut body_limits = BodyLimits::new(&context, &peer, MAX);
        let mut bytes = BytesMut::new();
        for frame in [100, 5_000, 16_000, 60_000, 7, 16_384, 300_000] {
            body_limits.arrived(bytes.len() + frame).unwrap();
            body_limits.make_room(&mut bytes, frame);
            bytes.extend_from_slice(&vec![7; frame]);
            let (capacity, counted) = (bytes.capacity(), body_limits.counted);
            assert!(capacity <= counted, "{capacity} bytes, {counted} counted");
        }
        assert!(bytes.iter().all(|byte| *byte == 7));
    }
}
