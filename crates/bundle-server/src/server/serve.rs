//! Serves bundles and single files: finds a plan or makes one on request.

use std::sync::Arc;

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

use super::counters::count;
use super::image_contents::ImageContents;
use super::plan_store::key;
use super::trace_store::RecordedTrace;
use super::{Bundle, BundleServer, RequestBase, Stream, lock, superseded};
use pierhead_toc::{Error, FileDigest};

impl BundleServer {
    /// As [`Self::bundle_for`], for the operator of this host.
    ///
    /// # Errors
    /// As [`Self::bundle_for`].
    pub fn bundle(
        &self,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
    ) -> Result<Bundle, Error> {
        self.bundle_for(ClientKey::OPERATOR, want, have, layers)
    }

    /// Finds the plan of a bundle, or makes it. Only a few plans are made at once, since each holds tables in memory. A new
    /// plan counts towards the share of `client` in [`super::Config::plans`].
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready (any more); `Io`.
    pub fn bundle_for(
        &self,
        client: ClientKey,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
    ) -> Result<Bundle, Error> {
        let inner = &self.inner;
        let have = inner.base_images(want, have);
        // What others wait for is most often this.
        let _planning = inner.planning.lock(key(want, &have, layers));
        if let Some(found) = self.find(want, &have, layers)? {
            return Ok(found);
        }
        let planned = inner.plan(client, want, &have, layers);
        let (key, plan) = planned.inspect_err(|error| {
            if matches!(error, Error::Missing(_)) {
                let _ = inner.again(want);
            }
        })?;
        inner.sent(want, layers, &key, &plan);
        let second = superseded::name(want, layers, &plan.etag);
        inner.charge(client, &key, Some(second), &plan);
        let packs = inner.packs.clone();
        Ok(Bundle { plan, packs })
    }

    /// The bundle, if it was planned before: cheap.
    ///
    /// # Errors
    /// `Io`.
    pub fn planned(
        &self,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
    ) -> Result<Option<Bundle>, Error> {
        self.find(want, &self.inner.base_images(want, have), layers)
    }

    /// As above, with `have` already reduced to the base images of the plan.
    fn find(
        &self,
        want: &Digest,
        have: &[RequestBase],
        layers: bool,
    ) -> Result<Option<Bundle>, Error> {
        let inner = &self.inner;
        let Some(key) = inner.key(want, have, layers)? else {
            return Ok(None);
        };
        // Packs may have left since: for better ones, or for want of room.
        let Some(plan) = inner.whole(&key)? else {
            return Ok(None);
        };
        count(&inner.counters.plan_hits);
        inner.sent(want, layers, &key, &plan);
        let packs = inner.packs.clone();
        Ok(Some(Bundle { plan, packs }))
    }

    /// One content of an image; `None` when the image has no such content.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready (any more), or its layers are gone; `Io`.
    pub fn file(&self, image: &Digest, content: &FileDigest) -> Result<Option<Stream>, Error> {
        let inner = &self.inner;
        let Some(size) = inner.size_in(image, content)? else {
            return Ok(None);
        };
        let source = ImageContents {
            inner: Arc::downgrade(inner),
            image: *image,
        };
        Ok(Some(Stream::of_file(Arc::new(source), *content, size)))
    }

    /// Records the files that a start of an image opened, in order, as the vote of that client. Leaves out files that the
    /// image does not have. Records nothing when no file is left.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready; `Io`.
    pub fn trace(
        &self,
        client: ClientKey,
        image: &Digest,
        files: &[String],
    ) -> Result<RecordedTrace, Error> {
        let inner = &self.inner;
        if self.blobs(image).is_none() {
            return Err(Error::Missing(image.to_string()));
        }
        let noted = inner.record_trace(client, image, files)?;
        if noted.is_new {
            lock(&inner.queue).order(*image);
            inner.wake.notify_all();
        }
        Ok(noted)
    }
}
