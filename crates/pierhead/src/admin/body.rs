//! Response bodies of the admin API: a complete document, or one line of JSON per step while a long
//! request proceeds.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;
use tokio::sync::mpsc;

use super::api::{ErrorResponse, Event};

/// A complete document, or newline-delimited JSON that a handler still produces.
pub(crate) enum Body {
    Complete(Full<Bytes>),
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
            Self::Complete(full) => Pin::new(full).poll_frame(context),
            Self::Lines(lines) => lines
                .poll_recv(context)
                .map(|line| line.map(|line| Ok(Frame::data(line)))),
        }
    }
}

/// A response body with a guard, such as a permit of a semaphore. The guard is dropped after the
/// body is sent.
pub(super) struct BodyWithGuard<T> {
    body: Body,
    _guard: T,
}

impl<T> BodyWithGuard<T> {
    pub(super) fn new(body: Body, guard: T) -> Self {
        Self {
            body,
            _guard: guard,
        }
    }
}

impl<T: Unpin> HttpBody for BodyWithGuard<T> {
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

/// The type of every response of the admin API.
pub(crate) type AdminResponse = Response<Body>;

/// Creates a response with a complete document.
pub(crate) fn document(
    status: StatusCode,
    content_type: &'static str,
    bytes: impl Into<Bytes>,
) -> AdminResponse {
    let mut response = Response::new(Body::Complete(Full::new(bytes.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
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
    response
}

/// Creates a response with a JSON document.
pub(crate) fn json(value: &impl Serialize) -> AdminResponse {
    match serde_json::to_vec(value) {
        Ok(bytes) => document(StatusCode::OK, "application/json", bytes),
        Err(error) => error_response(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Creates an error response. `error` is a message for the operator.
pub(crate) fn error_response(status: StatusCode, error: impl Into<String>) -> AdminResponse {
    let document_of_error = ErrorResponse {
        error: error.into(),
    };
    document(
        status,
        "application/json",
        serde_json::to_vec(&document_of_error).unwrap_or_default(),
    )
}

/// The sender of the lines of a newline-delimited response.
#[derive(Clone)]
pub(crate) struct LineSender(mpsc::Sender<Bytes>);

impl LineSender {
    /// Creates a newline-delimited response, and the sender of the lines. The response ends when
    /// all clones of the sender are dropped.
    pub(crate) fn response() -> (Self, AdminResponse) {
        let (sender, receiver) = mpsc::channel(16);
        let mut response = document(StatusCode::OK, "application/x-ndjson", Bytes::new());
        *response.body_mut() = Body::Lines(receiver);
        (Self(sender), response)
    }

    /// Sends a line to the client, and waits while the channel is full. Returns false if the client
    /// has closed the connection.
    pub(crate) async fn send(&self, event: &Event) -> bool {
        self.0.send(line(event)).await.is_ok()
    }

    /// Sends a line with the progress so far. If the channel is full, drops this line, since a
    /// later line has newer numbers.
    pub(crate) fn try_send(&self, event: &Event) {
        let _ = self.0.try_send(line(event));
    }

    /// Waits until the client has closed the connection.
    pub(crate) async fn client_left(&self) {
        self.0.closed().await;
    }
}

fn line(event: &Event) -> Bytes {
    let mut line = serde_json::to_vec(event).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
