//! Images as callers name them, and their states.

use pierhead_bundle::api::Progress;
use pierhead_oci::Digest;

/// An image that a client pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The digest of its manifest. For an index, this is the manifest of one platform.
    pub manifest: Digest,
    /// `registry/repository`. Images of one repository are updates of each other.
    pub repository: String,
}

/// The state of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody offered the image.
    Unknown,
    /// The server indexes the image, or the image waits in the queue.
    Working(Progress),
    /// The server can make bundles of the image.
    Ready,
    /// The server cannot make bundles of the image. The text gives the reason to people.
    Refused(String),
}

/// A base image as a request names it: an image that the worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBase {
    /// The digest of its manifest.
    pub manifest: Digest,
    /// Whether a plan may use it: the server knows the image, and the client may pull it.
    pub is_known: bool,
    /// Whether the worker can rebuild its layers, and so has all of its contents.
    pub has_layers: bool,
}
