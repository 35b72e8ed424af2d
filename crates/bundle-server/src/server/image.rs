//! Types of the server's API: an image, its state, and a base image that a request names (an image
//! whose contents the worker already has).

use pierhead_bundle::api::Progress;
use pierhead_oci::Digest;

/// An image that a client pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The digest of the image's manifest. If the image comes from an index, this is the manifest
    /// of one platform.
    pub manifest: Digest,
    /// The repository, as `registry/repository`. Images of one repository count as updates of each
    /// other.
    pub repository: String,
}

/// The state of an image at the bundle server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The server does not know the image, since no caller has offered it.
    Unknown,
    /// The server indexes the image, or the image waits in the queue.
    Working(Progress),
    /// The server can make bundles of the image.
    Ready,
    /// The server cannot make bundles of the image. The text is the reason, as a message for
    /// people.
    Refused(String),
}

/// A base image in a request: an image whose contents the worker already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBase {
    /// The digest of the base image's manifest.
    pub manifest: Digest,
    /// Whether a plan may use the base image: the server knows the image, and the client may pull
    /// it.
    pub is_usable: bool,
    /// Whether the worker can rebuild the layers of the base image, and so has all contents of
    /// these layers.
    pub has_layers: bool,
}

/// The usable base images of a request, without duplicates, in the order in which a plan uses them.
/// The list and its order do not depend on the order in the request.
#[derive(Clone, Debug)]
pub struct RankedBases(pub(super) Vec<RequestBase>);
