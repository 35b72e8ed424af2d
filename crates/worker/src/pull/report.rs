//! The report of a pull: how the image was transferred, how many bytes were received, and how long
//! the pull took.

use crate::store;
use serde::Serialize;

/// How the contents of an image were transferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PullMethod {
    /// The image was pulled as a bundle.
    #[default]
    Bundle,
    /// The image was pulled as layers.
    Layers,
}

/// The result of a pull. The serialized form is the output of `pierhead pull --json`. Later
/// versions add fields and remove none.
#[derive(Debug, Default, Serialize)]
pub struct PullReport {
    /// Full reference of the image.
    pub image: String,
    /// Digest of the image's manifest.
    pub digest: String,
    /// How the contents of the image were transferred.
    pub method: PullMethod,
    /// If the image was pulled as layers: the reason why not as a bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes received from the sockets. TLS records and HTTP heads are included.
    pub bytes_received: u64,
    /// Numbers of file contents, by where they came from.
    pub contents: ContentCounts,
    /// Number of base images in the request.
    pub base_images: usize,
    /// Number of base images in the request that the bundle does not use, because the server has no
    /// TOC of them or chose not to use them.
    pub base_images_unused: usize,
    /// Number of parallel connections to the server.
    pub connections: usize,
    /// Number of frames that an earlier, interrupted pull had already received.
    pub frames_resumed: u64,
    /// Seconds until all contents were in the store, without the sync and the export that follow.
    pub seconds: f64,
    /// Duration of the export, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_seconds: Option<f64>,
    /// Path to which the image was exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Properties of the image that the export could not keep, and other problems that did not stop
    /// the pull.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Numbers of file contents, by where they came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContentCounts {
    /// Number of contents that the store already had.
    pub reused: u64,
    /// Number of contents that arrived as a patch against a stored content.
    pub patched: u64,
    /// Number of contents that consist in part of ranges of stored contents.
    pub chunked: u64,
    /// Number of contents that arrived in full.
    pub full: u64,
}

impl ContentCounts {
    pub(super) fn new(counts: &store::ApplyCounts) -> Self {
        Self {
            reused: counts.reused.contents,
            patched: counts.patched.contents,
            chunked: counts.chunked.contents,
            full: counts.full.contents,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_report_has_the_fields_that_scripts_read() {
        let report = PullReport {
            image: "docker.io/library/redis:7".to_owned(),
            bytes_received: 7,
            ..PullReport::default()
        };
        let json = serde_json::to_value(&report).expect("an object");
        assert_eq!(json["bytes_received"], 7);
        assert_eq!(json["method"], "bundle");
        let contents = serde_json::json!({"reused":0,"patched":0,"chunked":0,"full":0});
        assert_eq!(json["contents"], contents);
        assert!(json.get("reason").is_none() && json.get("warnings").is_none());
    }
}
