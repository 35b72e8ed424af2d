//! The settings that all parts of one pull share. This module imports no other module of the pull.

use std::num::NonZeroUsize;

use crate::store::{self, Store};
use pierhead_oci::{Algorithm, Digest, Platform, Reference, Target};

use crate::http::Session;
use crate::{Error, Progress, Server, registry};

/// The settings of one pull.
pub(super) struct PullContext<'a> {
    pub(super) server: &'a Server,
    pub(super) image: Reference,
    pub(super) platform: Platform,
    pub(super) store: Store,
    pub(super) connections: Option<NonZeroUsize>,
    pub(super) layers_only: bool,
    /// Whether the export rebuilds layers. Layers need contents that the merged tree does not have.
    pub(super) with_layers: bool,
    pub(super) progress: &'a dyn Progress,
}

impl PullContext<'_> {
    /// Creates a new session, which connects with its first request.
    pub(super) fn session(&self) -> Session {
        Session::new(self.server)
    }

    /// Returns the wanted image if the reference has a digest and the store has the complete image.
    /// This lookup needs no server.
    pub(super) fn stored_image(&self) -> Result<Option<store::Image>, Error> {
        match &self.image.target {
            Target::Digest(digest) => Ok(self.store.complete(digest, self.with_layers)?),
            Target::Tag(_) => Ok(None),
        }
    }

    /// Checks that a manifest has the digest that the reference names, if the reference names a
    /// digest. The caller checks this before the store records the image.
    ///
    /// # Errors
    /// [`Error::Image`] if the server sent another image; errors of the request for an index.
    pub(super) fn verify_manifest(&self, session: &Session, manifest: &[u8]) -> Result<(), Error> {
        let Target::Digest(wanted) = &self.image.target else {
            return Ok(());
        };
        if Digest::of(wanted.algorithm(), manifest) == *wanted {
            return Ok(());
        }
        // The digest may be the digest of an index, which lists the digests of image manifests.
        let resolved = registry::resolve(session, &self.image, &self.platform)?;
        if resolved.digest == Digest::of(Algorithm::Sha256, manifest) {
            return Ok(());
        }
        Err(Error::Image(format!(
            "{} sent another image than {wanted}",
            self.server.url()
        )))
    }
}
