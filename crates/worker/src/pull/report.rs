//! The report of a pull: how the image was transferred, how many bytes, and how long it took.

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

/// The result of a pull. Its serialized form is the object of `pierhead pull --json`: later
/// versions add fields and remove none.
#[derive(Debug, Default, Serialize)]
pub struct PullReport {
    /// The full reference.
    pub image: String,
    /// The digest of the manifest.
    pub digest: String,
    /// How the contents were transferred.
    pub method: PullMethod,
    /// Why the image was not pulled as a bundle, if that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes received from the sockets. TLS records and HTTP heads count.
    pub bytes_received: u64,
    /// Numbers of file contents by their source.
    pub contents: ContentCounts,
    /// Number of base images in the request.
    pub base_images: usize,
    /// Number of these base images that the bundle does not use: the server has no TOC of them, or
    /// chose not to use them.
    pub base_images_unused: usize,
    /// Number of parallel connections.
    pub connections: usize,
    /// Number of frames that an earlier, interrupted pull has received.
    pub frames_resumed: u64,
    /// Seconds until all contents are in the store. Sync and export follow.
    pub seconds: f64,
    /// Duration of the export, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export_seconds: Option<f64>,
    /// The path of the export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Properties of the image that the export could not keep, and other problems that did not stop
    /// the pull.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Numbers of file contents by their source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContentCounts {
    /// Contents that the store already had.
    pub reused: u64,
    /// Contents that arrived as a patch against a stored content.
    pub patched: u64,
    /// Contents that were assembled in part from stored contents.
    pub chunked: u64,
    /// Contents that arrived in full.
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
