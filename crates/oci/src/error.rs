//! What can be wrong with a word of the specs, and the spec's own error body.

use serde::{Deserialize, Serialize};

/// Why a text is not what it was taken for. Always the sender's fault; never worth a retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Not `algorithm:hex` with the length that the algorithm has.
    #[error("not a digest: expected sha256: and 64, or sha512: and 128 lower-case hex digits")]
    Digest,
    /// A hash function that this crate does not know.
    #[error("unsupported digest algorithm: only sha256 and sha512 are")]
    DigestAlgorithm,
    /// Not a registry: `host` or `host:port`.
    #[error("not a registry name: {0}")]
    Registry(&'static str),
    /// Not a repository name by the grammar of Distribution v1.1.
    #[error("not a repository name: {0}")]
    Repository(&'static str),
    /// Not a tag by the grammar of Distribution v1.1.
    #[error("not a tag: at most 128 of A-Z a-z 0-9 _ . - and no leading . or -")]
    Tag,
    /// Not a platform.
    #[error("not a platform: expected os/architecture or os/architecture/variant")]
    Platform,
    /// Not a manifest or index that can be used.
    #[error("not a manifest: {0}")]
    Manifest(String),
    /// Not a path of the Distribution API.
    #[error("not a path of the distribution API")]
    Endpoint,
    /// A query parameter that makes no sense.
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
    /// Not in the spec's table, but what registries answer when they are down.
    Unavailable,
    /// What registries answer when something inside them failed, and any code that is not listed.
    #[serde(other)]
    Unknown,
}

/// `{"errors":[{"code":…,"message":…}]}`: the one body that clients show to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// At least one.
    pub errors: Vec<ErrorEntry>,
}

/// One entry of an [`ErrorBody`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorEntry {
    /// What kind of failure.
    pub code: ErrorCode,
    /// For people: what is wrong and what to do.
    #[serde(default, deserialize_with = "text_or_null")]
    pub message: String,
    /// For programs: whatever the sender and its clients agreed upon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<serde_json::Value>,
}

impl ErrorBody {
    /// A body with one entry.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            errors: vec![ErrorEntry {
                code,
                message: message.into(),
                detail: None,
            }],
        }
    }

    /// The same with a detail of its first entry. What cannot be JSON is left out.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Serialize) -> Self {
        if let Some(entry) = self.errors.first_mut() {
            entry.detail = serde_json::to_value(detail).ok();
        }
        self
    }

    /// Reads what a registry answered. `None` when it is not the spec's body (a proxy's HTML, for
    /// instance), has no entry or is over 64 KiB. Meant for people's eyes, so what could upset a
    /// terminal or a log is taken out: control characters, and all beyond 8 entries of 512
    /// characters.
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

    /// The JSON bytes. Cannot fail: codes and text always serialise.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn text_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
