//! A response of the fake registry before it is sent, and the faults that change its headers.

use bytes::Bytes;
use serde_json::json;

use super::content::Content;
use super::fault::Fault;

pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) content: Content,
    /// Offset of the response's body in the content.
    pub(super) start: u64,
    /// Length of the body in bytes.
    pub(super) len: u64,
    pub(super) framing: Framing,
    /// Whether the body belongs to a blob.
    pub(super) is_blob: bool,
}

/// How the response marks the end of the body.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
    /// The response has no body, because of its status.
    Bodiless,
}

impl Reply {
    /// Creates a response with the whole `content`.
    pub(super) fn of(status: u16, media_type: &str, content: Content) -> Self {
        let len = content.len();
        Self {
            status,
            headers: vec![("content-type".to_owned(), media_type.to_owned())],
            content,
            start: 0,
            len,
            framing: Framing::Length(len),
            is_blob: false,
        }
    }

    pub(super) fn json(status: u16, document: &serde_json::Value) -> Self {
        Self::of(
            status,
            "application/json",
            Content::memory(document.to_string().into()),
        )
    }

    /// Creates a response with an error body of the specification.
    pub(super) fn error(status: u16, code: &str) -> Self {
        let message = format!("the fake registry says {status}");
        Self::json(
            status,
            &json!({ "errors": [{ "code": code, "message": message }] }),
        )
    }

    pub(super) fn empty(status: u16) -> Self {
        let mut reply = Self::of(status, "", Content::memory(Bytes::new()));
        reply.headers.clear();
        if status == 304 {
            reply.framing = Framing::Bodiless;
        }
        reply
    }

    pub(super) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.set(name, value.into());
        self
    }

    fn set(&mut self, name: &str, value: String) {
        self.headers
            .retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value));
    }

    /// Limits the body to the bytes `start..=end` of the content, and adds a `Content-Range`.
    pub(super) fn ranged(mut self, start: u64, end: u64) -> Self {
        self.status = 206;
        self.start = start;
        self.len = end - start + 1;
        self.framing = Framing::Length(self.len);
        let total = self.content.len();
        self.header("content-range", format!("bytes {start}-{end}/{total}"))
    }

    /// Applies the faults of headers and framing. The module `body` applies the faults of the body.
    pub(super) fn spoil(&mut self, faults: &[Fault]) {
        for fault in faults {
            match fault {
                Fault::Header(name, value) => self.set(name, value.clone()),
                Fault::WithoutHeader(name) => self
                    .headers
                    .retain(|(other, _)| !other.eq_ignore_ascii_case(name)),
                Fault::HugeHeaders(bytes) => {
                    // Each line has 4 KiB, because a client may limit not only the whole head, but
                    // also single lines.
                    for (nth, left) in (0..*bytes).step_by(4096).enumerate() {
                        let value = "n".repeat((bytes - left).min(4096));
                        self.headers.push((format!("x-needless-{nth}"), value));
                    }
                }
                Fault::Chunked => self.framing = Framing::Chunked,
                Fault::UntilClose => self.framing = Framing::UntilClose,
                Fault::LengthTooLong(by) => self.framing = Framing::Length(self.len + by),
                Fault::LengthTooShort(by) => {
                    self.framing = Framing::Length(self.len.saturating_sub(*by))
                }
                Fault::WrongContentRange if self.status == 206 => {
                    let (start, end) = (self.start + 1, self.start + self.len);
                    self.set(
                        "content-range",
                        format!("bytes {start}-{end}/{}", self.content.len() + 1),
                    );
                }
                _ => {}
            }
        }
    }

    /// Returns the encoded head of the response.
    pub(super) fn head(&self) -> Vec<u8> {
        let reason = http::StatusCode::from_u16(self.status)
            .ok()
            .and_then(|status| status.canonical_reason());
        let mut head = format!(
            "HTTP/1.1 {} {}\r\n",
            self.status,
            reason.unwrap_or("Unknown")
        );
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match self.framing {
            Framing::Length(len) => head.push_str(&format!("content-length: {len}\r\n")),
            Framing::Chunked => head.push_str("transfer-encoding: chunked\r\n"),
            Framing::UntilClose => head.push_str("connection: close\r\n"),
            Framing::Bodiless => {}
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// Whether the headers close the connection after this response.
    pub(super) fn closes(&self) -> bool {
        let says_close = |(name, value): &(String, String)| {
            name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close")
        };
        self.framing == Framing::UntilClose || self.headers.iter().any(says_close)
    }
}
