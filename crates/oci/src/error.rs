//! `ParseError`, the error of the parsers of OCI texts, and the error body of the Distribution API.

use serde::{Deserialize, Serialize};

/// The reason why a text cannot be parsed. The sender has to correct the text, so a retry does not
/// help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The text is not `algorithm:hex`, or the length of the hash does not fit the algorithm.
    #[error("not a digest: expected sha256: and 64, or sha512: and 128 lower-case hex digits")]
    Digest,
    /// The text names a hash function that this crate does not know.
    #[error("unsupported digest algorithm: use sha256 or sha512")]
    DigestAlgorithm,
    /// The text is not a registry: `host` or `host:port`.
    #[error("not a registry name: {0}")]
    Registry(&'static str),
    /// The text is not a repository name of Distribution v1.1.
    #[error("not a repository name: {0}")]
    Repository(&'static str),
    /// The text is not a tag of Distribution v1.1.
    #[error("not a tag: at most 128 of A-Z a-z 0-9 _ . - and no leading . or -")]
    Tag,
    /// The text is not a platform.
    #[error("not a platform: expected os/architecture or os/architecture/variant")]
    Platform,
    /// The document is not a usable manifest or index.
    #[error("not a manifest: {0}")]
    Manifest(String),
    /// The text is not a path of the Distribution API.
    #[error("not a path of the distribution API")]
    Endpoint,
    /// A query parameter has an invalid value.
    #[error("bad query parameter {0}")]
    Query(&'static str),
}

/// The error codes of Distribution v1.1, section "Error Codes".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names are the spec's")]
pub enum ErrorCode {
    BlobUnknown,
    BlobUploadInvalid,
    BlobUploadUnknown,
    DigestInvalid,
    ManifestBlobUnknown,
    ManifestInvalid,
    ManifestUnknown,
    NameInvalid,
    NameUnknown,
    SizeInvalid,
    Unauthorized,
    Denied,
    Unsupported,
    #[serde(rename = "TOOMANYREQUESTS")]
    TooManyRequests,
    /// The specification does not have this code. Registries send this code when they are
    /// unavailable.
    Unavailable,
    /// Registries send this code for an internal error. pierhead also uses it for every received
    /// code that this enum does not list.
    #[serde(other)]
    Unknown,
}

/// The body `{"errors":[{"code":…,"message":…}]}` of an error response. Clients show the messages
/// in this body to users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The entries of the body, at least one.
    pub errors: Vec<ErrorEntry>,
}

/// One error in an [`ErrorBody`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// The kind of the error.
    pub code: ErrorCode,
    /// The text for users: the error and its fix.
    #[serde(default, deserialize_with = "text_or_null")]
    pub message: String,
    /// Details for programs. The form of the details depends on the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

impl ErrorBody {
    /// Creates a body with one error.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            errors: vec![ErrorEntry {
                code,
                message: message.into(),
                detail: None,
            }],
        }
    }

    /// Adds a detail to the first error of the body. A value that JSON cannot represent is omitted.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Serialize) -> Self {
        if let Some(entry) = self.errors.first_mut() {
            entry.detail = serde_json::to_value(detail).ok();
        }
        self
    }

    /// Parses the body of an error response. `None` if the body has another form (such as the HTML
    /// of a proxy), has no entry, or is larger than 64 KiB.
    ///
    /// The messages are shown in terminals and logs. For this reason, the parser removes control
    /// characters, and keeps at most 8 entries of 512 characters each.
    pub fn parse(json: &[u8]) -> Option<Self> {
        if json.len() > 64 << 10 {
            return None;
        }
        let mut body: Self = serde_json::from_slice(json)
            .ok()
            .filter(|body: &Self| !body.errors.is_empty())?;
        body.errors.truncate(8);
        for entry in &mut body.errors {
            entry.message = entry
                .message
                .chars()
                .filter(|c| !c.is_control())
                .take(512)
                .collect();
        }
        Some(body)
    }

    /// Serializes the body as JSON. The call cannot fail, because JSON can represent all codes and
    /// texts.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
