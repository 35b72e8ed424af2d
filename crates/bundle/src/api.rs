//! JSON documents of the bundle endpoints, as worker and server exchange them.

use pierhead_oci::Digest;
use serde::{Deserialize, Serialize};

use pierhead_toc::Error;

/// Most bytes of a document that a worker sends.
pub const MAX_DOCUMENT: usize = 1 << 20;

/// Most images that a worker may say it has: each is a table to merge.
pub const MAX_BASE_IMAGES: usize = 256;

/// Most shares that a bundle is sent in: each is a connection.
pub const MAX_SHARES: u16 = 64;

/// Most files of one trace: a start of the largest images opens some thousands.
pub const MAX_TRACE: usize = 16_384;

/// The media type of a bundle.
pub const MEDIA_TYPE: &str = "application/vnd.pierhead.bundle.v1";

/// The header of an answer that lists what of `have` is not known here, or may not be pulled by whoever asks.
pub const UNKNOWN_BASE_IMAGES: &str = "pierhead-unknown-have";

/// `POST /v2/<name>/_pierhead/bundle`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleQuery {
    /// A tag, or the digest of a manifest.
    pub want: String,
    /// `os/architecture[/variant]`: which image of an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Manifests of images that the worker has complete, in any order. The server uses the 16 most similar ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub have: Vec<Digest>,
    /// The images of `have` whose layers the worker can rebuild.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub have_layers: Vec<Digest>,
    /// Whether the layers are to be rebuilt, and not only mounted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layers: bool,
    /// Only records of a bundle whose header was received before, under the very same `want` and `have`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// One of several shares of the whole bundle, for who asks for all of them at once, over as many connections. Not
    /// together with `part`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// With a share: the header may come in pieces, one in front of each share.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pieces: bool,
    /// Requests the [`StartOrder`] of the image in place of a bundle. An older server ignores this and sends the bundle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_order: bool,
}

/// The expected order of file opens at a container start. The response to an [`BundleQuery`] with `start_order`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartOrder {
    /// Where the order comes from.
    pub source: OrderSource,
    /// Paths in the image, without a leading slash, at most [`MAX_TRACE`].
    pub files: Vec<String>,
    /// Whether a bundle without base images already carries these files first.
    pub applied: bool,
    /// Layers of the image.
    pub layers: u32,
    /// Layers that are compressed fast and wait for better compression.
    pub layers_waiting: u32,
}

/// Where a [`StartOrder`] comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrderSource {
    /// The order comes from container starts that clients recorded, of this image or an earlier version.
    Trace {
        /// The manifest of the image that was started.
        image: Digest,
        /// Number of clients that recorded it, where the server counts them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clients: Option<u32>,
    },
    /// The order comes from the entrypoint and command of the config, with interpreters and libraries.
    Config,
}

/// Which share of a bundle: `[nth, of]`. The first begins with the header, the others are continuations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share(pub u16, pub u16);

impl Share {
    /// Its part of something of so many bytes: together they are all of it, each about as long.
    pub fn of(self, bytes: u64) -> std::ops::Range<u64> {
        let begin = |nth: u16| {
            let place = u128::from(bytes) * u128::from(nth) / u128::from(self.1.max(1));
            u64::try_from(place).unwrap_or(bytes)
        };
        begin(self.0)..begin(self.0.saturating_add(1))
    }
}

/// Records of a bundle, by the ordinals of their frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The `ETag` of the answer that the header came in, quotes included.
    pub etag: String,
    /// The first frame.
    pub first: u32,
    /// Behind the last frame; to the end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// `POST /v2/<name>/_pierhead/trace`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// A tag, or the digest of a manifest.
    pub image: String,
    /// `os/architecture[/variant]`: which image of an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Paths in the image in the order in which they were opened first, without a slash in front.
    pub files: Vec<String>,
}

/// The response to a [`Trace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// Number of distinct entries of the trace that are regular files of the image.
    pub matched: u64,
    /// Number of clients with a trace of this image. Older servers omit it.
    #[serde(default)]
    pub clients: u64,
}

/// The `detail` of the error body of a 503: how far an image is that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Done, of `total`: bytes of a pull, layers of an index.
    pub done: u64,
    /// In all, as far as known; 0: not known yet.
    pub total: u64,
}

/// Of [`Progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Stage {
    /// Others are before it.
    Wait,
    /// Its layers are on their way from the upstream.
    Pull,
    /// Its layers are being read.
    Index,
}

impl BundleQuery {
    /// Reads what a worker sent.
    ///
    /// # Errors
    /// [`Error::Malformed`]: over a bound, or not of this form.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let ask: Self = parse(json, "bundle request")?;
        let fits = |Share(nth, of)| nth < of && of <= MAX_SHARES && ask.part.is_none();
        if !ask.share.is_none_or(fits) {
            let why = format!(
                "a share that there is not: one of at most {MAX_SHARES}, from 0, and without a part"
            );
            return Err(Error::malformed("bundle request", why));
        }
        match ask.have.len().max(ask.have_layers.len()) {
            0..=MAX_BASE_IMAGES => Ok(ask),
            many => Err(Error::malformed(
                "bundle request",
                format!("{many} images in have, and {MAX_BASE_IMAGES} are the most"),
            )),
        }
    }
}

impl Trace {
    /// Reads what a worker sent.
    ///
    /// # Errors
    /// [`Error::Malformed`]: over a bound, or not of this form.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let trace: Self = parse(json, "trace")?;
        match trace.files.len() {
            0..=MAX_TRACE => Ok(trace),
            many => Err(Error::malformed(
                "trace",
                format!("{many} files, and {MAX_TRACE} are the most"),
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
        // It can quote the document.
        let why: String = error.to_string().chars().take(200).collect();
        Error::malformed(what, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_question_means_the_usual() {
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
    fn hostile_questions_are_malformed() {
        let digest = format!("\"sha256:{}\"", "0".repeat(64));
        let have = |n: usize| format!(r#"{{"want":"7","have":[{}]}}"#, vec![&*digest; n].join(","));
        assert_eq!(
            BundleQuery::parse(have(256).as_bytes()).unwrap().have.len(),
            256
        );
        for bad in [
            have(257),
            have(10_000),
            have(1).replace("sha256:0", "sha256:"),
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
