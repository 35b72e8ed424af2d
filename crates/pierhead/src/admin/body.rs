//! The two kinds of answers: a document, and lines that come as the work goes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::api::{Event, Refusal};

/// A whole document, or newline-delimited JSON as it is made.
pub(crate) enum Body {
    Whole(Full<Bytes>),
    Lines(mpsc::Receiver<Bytes>),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(full) => Pin::new(full).poll_frame(context),
            Self::Lines(lines) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}

/// A body, and what is to be kept until it is sent.
pub(super) struct Held<T> {
    body: Body,
    _kept: T,
}

impl<T> Held<T> {
    pub(super) fn new(body: Body, kept: T) -> Self {
        Self { body, _kept: kept }
    }
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answer to everything here.
pub(crate) type Answer = Response<Body>;

/// A document of any type.
pub(crate) fn document(
    status: StatusCode,
    content_type: &'static str,
    bytes: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(Body::Whole(Full::new(bytes.into())));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-store"),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        header::HeaderValue::from_static("nosniff"),
    );
    answer
}

/// A JSON document.
pub(crate) fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => document(StatusCode::OK, "application/json", bytes),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// An error for people.
pub(crate) fn refuse(status: StatusCode, error: impl Into<String>) -> Answer {
    let refusal = Refusal {
        error: error.into(),
    };
    document(
        status,
        "application/json",
        serde_json::to_vec(&refusal).unwrap_or_default(),
    )
}

/// The writing end of an answer in lines.
#[derive(Clone)]
pub(crate) struct Lines(mpsc::Sender<Bytes>);

impl Lines {
    /// An answer, and where to write its lines. The answer ends when all ends of the latter are dropped.
    pub(crate) fn answer() -> (Self, Answer) {
        let (sender, receiver) = mpsc::channel(16);
        let mut answer = document(StatusCode::OK, "application/x-ndjson", Bytes::new());
        *answer.body_mut() = Body::Lines(receiver);
        (Self(sender), answer)
    }

    /// Waits for room; `false` when nobody reads any more.
    pub(crate) async fn send(&self, event: &Event) -> bool {
        self.0.send(line(event)).await.is_ok()
    }

    /// Leaves the event out when the reader is slow: the next one says more.
    pub(crate) fn offer(&self, event: &Event) {
        let _ = self.0.try_send(line(event));
    }

    /// Resolves when nobody reads any more.
    pub(crate) async fn abandoned(&self) {
        self.0.closed().await;
    }
}

fn line(event: &Event) -> Bytes {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
