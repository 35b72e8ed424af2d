//! The JSON documents of the endpoints for bundles and traces: request bodies, responses and error
//! details.

use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Maximum size in bytes of the body of a request for a bundle, or of a trace.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// Maximum number of base images in a request. The server may read the TOC (table of contents) of
/// each base image.
pub const MAX_BASE_IMAGES: usize = 256;

/// Maximum number of shares of a bundle. Each share takes its own connection.
pub const MAX_SHARES: u16 = 64;

/// Maximum number of files in one trace. A start of the largest images opens some thousands of
/// files.
pub const MAX_TRACE: usize = 16_384;

/// The media type of the response with a bundle.
pub const MEDIA_TYPE: &str = "application/vnd.pierhead.bundle.v1";

/// Response header that lists base images of the request that the bundle does not use, because the
/// server does not know them or the client may not pull them.
pub const UNKNOWN_BASE_IMAGES: &str = "pierhead-unknown-base-images";

/// A request for a bundle: the body of `POST /v2/<name>/_pierhead/bundle`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleQuery {
    /// The wanted image: a tag, or the digest of a manifest.
    pub want: String,
    /// The platform by which the server chooses an image of an index: `os/architecture[/variant]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The base images: manifests of complete images that the worker has, in any order. The server
    /// uses the 16 base images that are most similar to the wanted image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub base_images: Vec<Digest>,
    /// The base images of which the worker can rebuild the layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub base_images_with_layers: Vec<Digest>,
    /// Whether the worker will rebuild the layers of the image. A worker that does not rebuild
    /// layers only mounts the image, and needs fewer contents.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layers: bool,
    /// Requests only some records of a bundle. The worker has received the header of the bundle
    /// before, for the same `want` and `base_images`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Requests one of several shares of the whole bundle. The worker requests all shares at once,
    /// each over its own connection. A request with `share` must not have `part`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// Only with `share`: whether the server may divide the header into pieces and send one piece
    /// before the records of each share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pieces: bool,
    /// Requests the [`StartOrder`] of the image in place of a bundle. An older server ignores this
    /// field and sends the bundle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_order: bool,
}

/// The order in which a container start is expected to open files: the response to a
/// [`BundleQuery`] with `start_order`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// Where the order comes from.
    pub source: OrderSource,
    /// At most [`MAX_TRACE`] paths in the image, without a leading slash, in the expected order.
    pub files: Vec<String>,
    /// Whether a bundle for workers without base images already sends these files first.
    pub applied: bool,
    /// Number of layers of the image.
    pub layers: u32,
    /// Number of layers whose packed files are still compressed at a low level, and wait for better
    /// compression.
    pub layers_waiting: u32,
}

/// Where a [`StartOrder`] comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrderSource {
    /// The order comes from container starts that clients recorded. The clients started this image
    /// or an earlier version of the image.
    Trace {
        /// The digest of the manifest of the image that was started.
        image: Digest,
        /// Number of clients that recorded a start of the image. The field is absent if the server
        /// does not count these clients.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clients: Option<u32>,
    },
    /// The order comes from the image config: its entrypoint and command, with their interpreters
    /// and libraries.
    Config,
}

/// One share (part) of a bundle that a client receives over several connections: share `nth` of
/// `of` shares. The JSON form is `[nth, of]`. The first share starts with the header. The other
/// shares contain only records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share(pub u16, pub u16);

impl Share {
    /// Returns the byte range of this share, if the whole bundle has `bytes` bytes. The ranges of
    /// all shares have about equal length, and cover all bytes.
    pub fn of(self, bytes: u64) -> std::ops::Range<u64> {
        let begin = |nth: u16| {
            let place = u128::from(bytes) * u128::from(nth) / u128::from(self.1.max(1));
            u64::try_from(place).unwrap_or(bytes)
        };
        begin(self.0)..begin(self.0.saturating_add(1))
    }
}

/// A range of the records of a bundle, given by frame numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The `ETag` of the response with the header, including its quotes.
    pub etag: String,
    /// Number of the first frame of the range.
    pub first: u32,
    /// Number of the frame after the last frame of the range. When this field is absent, the range
    /// goes to the end of the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// The record of a container start (a trace): the body of `POST /v2/<name>/_pierhead/trace`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The started image: a tag, or the digest of a manifest.
    pub image: String,
    /// The platform by which the server chooses an image of an index: `os/architecture[/variant]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Paths of files in the image, without a leading slash, in the order in which each file was
    /// first opened.
    pub files: Vec<String>,
}

/// The response of the server to a [`Trace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// Number of distinct entries of the trace that are regular files of the image.
    pub matched: u64,
    /// Number of clients of which the server has a trace of this image. Older servers omit this
    /// number.
    #[serde(default)]
    pub clients: u64,
}

/// How far the server has prepared the requested image: the `detail` in the error body of a
/// response with status 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The current stage of the preparation.
    pub stage: Stage,
    /// How much of `total` is done. The unit is bytes while the proxy pulls layers, and layers
    /// while the server indexes them.
    pub done: u64,
    /// Total number of bytes or layers, or 0 when it is not known yet.
    pub total: u64,
}

/// The stage of an image that is not ready for bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// The image waits in the queue behind other images.
    Wait,
    /// The proxy pulls the layers of the image from the upstream registry.
    Pull,
    /// The server indexes the layers of the image.
    Index,
}

impl BundleQuery {
    /// Parses a request body.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a body that exceeds a limit, or is not a valid document of this
    /// type.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let ask: Self = parse(json, "bundle request")?;
        let fits = |Share(nth, of)| nth < of && of <= MAX_SHARES && ask.part.is_none();
        if !ask.share.is_none_or(fits) {
            let why =
                format!("share must be [nth, of] with nth < of <= {MAX_SHARES}, and excludes part");
            return Err(Error::malformed("bundle request", why));
        }
        let with_layers = ask.base_images_with_layers.len();
        match ask.base_images.len().max(with_layers) {
            0..=MAX_BASE_IMAGES => Ok(ask),
            many => Err(Error::malformed(
                "bundle request",
                format!("{many} base images; the maximum is {MAX_BASE_IMAGES}"),
            )),
        }
    }
}

impl Trace {
    /// Parses a request body.
    ///
    /// # Errors
    /// [`Error::Malformed`] for a body that exceeds a limit, or is not a valid document of this
    /// type.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let trace: Self = parse(json, "trace")?;
        match trace.files.len() {
            0..=MAX_TRACE => Ok(trace),
            many => Err(Error::malformed(
                "trace",
                format!("{many} files; the maximum is {MAX_TRACE}"),
            )),
        }
    }
}

fn parse<T: for<'a> Deserialize<'a>>(json: &[u8], what: &'static str) -> Result<T, Error> {
    if json.len() > MAX_DOCUMENT {
        let why = format!("longer than {MAX_DOCUMENT} bytes");
        return Err(Error::malformed(what, why));
    }
    serde_json::from_slice(json).map_err(|error| {
        // The text of the error can quote the document, so only the first 200 characters of the
        // text are used.
        let why: String = error.to_string().chars().take(200).collect();
        Error::malformed(what, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_fields_have_their_defaults() {
        let ask = BundleQuery::parse(br#"{"want":"7"}"#).unwrap();
        assert_eq!(
            ask,
            BundleQuery {
                want: "7".into(),
                ..BundleQuery::default()
            }
        );
        assert_eq!(serde_json::to_string(&ask).unwrap(), r#"{"want":"7"}"#);
    }

    #[test]
    fn shares_are_numbered_from_0() {
        let ask = BundleQuery::parse(br#"{"want":"7","share":[63,64]}"#).unwrap();
        assert_eq!(ask.share, Some(Share(63, MAX_SHARES)));
        let json = serde_json::to_string(&ask).unwrap();
        assert_eq!(json, r#"{"want":"7","share":[63,64]}"#);
    }

    #[test]
    fn hostile_requests_are_malformed() {
        let digest = format!("\"sha256:{}\"", "0".repeat(64));
        let with_bases = |n: usize| {
            let bases = vec![&*digest; n].join(",");
            format!(r#"{{"want":"7","base_images":[{bases}]}}"#)
        };
        let query = BundleQuery::parse(with_bases(256).as_bytes()).unwrap();
        assert_eq!(query.base_images.len(), 256);
        for bad in [
            with_bases(257),
            with_bases(10_000),
            with_bases(1).replace("sha256:0", "sha256:"),
            "{}".into(),
            "[]".into(),
            String::new(),
            r#"{"want":"7","part":{"etag":"x","first":-1}}"#.into(),
            r#"{"want":"7","part":{"etag":"x","first":4294967296}}"#.into(),
            r#"{"want":"7","share":[1,1]}"#.into(),
            r#"{"want":"7","share":[0,0]}"#.into(),
            r#"{"want":"7","share":[0,65]}"#.into(),
            r#"{"want":"7","share":[0,65536]}"#.into(),
            r#"{"want":"7","share":[-1,2]}"#.into(),
            r#"{"want":"7","share":[0]}"#.into(),
            r#"{"want":"7","share":[0,2],"part":{"etag":"x","first":1}}"#.into(),
            format!(r#"{{"want":"7","x":"{}"}}"#, "x".repeat(MAX_DOCUMENT)),
            "[".repeat(100_000),
        ] {
            let parsed = BundleQuery::parse(bad.as_bytes());
            let start: String = bad.chars().take(60).collect();
            assert!(matches!(parsed, Err(Error::Malformed { .. })), "{start}");
        }
        let files = |n: usize| {
            format!(
                r#"{{"image":"7","files":[{}]}}"#,
                vec!["\"a\""; n].join(",")
            )
        };
        assert!(Trace::parse(files(MAX_TRACE).as_bytes()).is_ok());
        assert!(Trace::parse(files(MAX_TRACE + 1).as_bytes()).is_err());
    }
}
