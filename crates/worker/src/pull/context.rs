//! The settings that all parts of one pull share. This module imports no other
//! module of the pull except the report.

use std::num::NonZeroUsize;

use crate::store::{self, Store};
use pierhead_oci::{Algorithm, Digest, Platform, Reference, Target};

use super::report::PullReport;
use crate::http::Session;
use crate::{Error, Progress, Server, registry};

/// The settings of one pull.
pub(super) struct PullContext<'a> {
    pub(super) server: &'a Server,
    pub(super) image: Reference,
    pub(super) platform: Platform,
    /// Whether an image of another platform is an error. If not, the report has a warning.
    pub(super) requires_platform: bool,
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
    /// Checks that the image runs on the wanted platform, by the platform in its config. An image
    /// from an image index was chosen by the platform of its entry, so its config is not checked.
    /// `is_of_index` is called only if the config names another platform.
    ///
    /// # Errors
    /// [`Error::Image`] if the image is for another platform and the wanted platform is required;
    /// errors of `is_of_index`.
    pub(super) fn check_platform(
        &self,
        config: &[u8],
        report: &mut PullReport,
        is_of_index: impl FnOnce() -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let offered = Platform::of_config(config).filter(|it| !self.platform.runs(it));
        let Some(offered) = offered else {
            return Ok(());
        };
        if is_of_index()? {
            return Ok(());
        }
        let why = format!("the image is for {offered}, not for {}", self.platform);
        if self.requires_platform {
            return Err(Error::Image(format!("{}: {why}", self.image)));
        }
        if !report.warnings.contains(&why) {
            report.warnings.push(why);
        }
        Ok(())
    }
}
