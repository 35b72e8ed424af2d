//! Reads the TOC (table of contents) of an image. When the TOC is lost or damaged, queues the image
//! for indexing.

use std::sync::Arc;

use pierhead_oci::Digest;

use super::context::Context;
use super::paths::remove;
use super::reindex::reindex;
use crate::Error;
use pierhead_toc::{FileDigest, ImageToc};

/// Returns the TOC of a ready image.
pub(super) fn load_toc(context: &Context, manifest: &Digest) -> Result<Arc<ImageToc>, Error> {
    let loaded = context.tocs.load(manifest);
    loaded.or_else(|error| recover(context, manifest, error))
}

/// Returns the TOC of a base image. Returns `None` when the server has no TOC of this image, or
/// when [`super::Config::toc_memory`] is used up.
///
/// # Errors
/// `Io` when file descriptors or memory are used up. With `None` in place of this error, the server
/// would store a plan that does not use the base image.
pub(super) fn load_base_toc(
    context: &Context,
    manifest: &Digest,
) -> Result<Option<Arc<ImageToc>>, Error> {
    if let Some(toc) = context.tocs.loaded(manifest) {
        return Ok(Some(toc));
    }
    if !context.tocs.has_room(manifest) {
        return Ok(None);
    }
    match load_toc(context, manifest) {
        Err(error) if error.is_exhausted() => Err(error),
        read => Ok(read.ok()),
    }
}

/// Returns the size of one file content of a ready image.
pub(super) fn size_in(
    context: &Context,
    manifest: &Digest,
    content: &FileDigest,
) -> Result<Option<u64>, Error> {
    let size = context.tocs.size_of(manifest, content);
    size.or_else(|error| recover(context, manifest, error))
}

/// Queues a rebuild of an image's TOC, which could not be read. Deletes the old file only when
/// `error` proves that the file is damaged. At a second failure of the same image, or for a lack of
/// file descriptors or memory, returns the error.
fn recover<T>(context: &Context, manifest: &Digest, error: Error) -> Result<T, Error> {
    context.tocs.close(manifest);
    if error.is_exhausted() {
        return Err(error);
    }
    if error.is_damage() {
        tracing::warn!(%error, %manifest, "the TOC of an image is damaged; pierhead rebuilds it");
        remove(&context.paths.toc(manifest));
    } else if matches!(error, Error::Io { .. }) {
        if !context.tocs.report_unreadable(manifest, &error) {
            return Err(error);
        }
    } else if !matches!(error, Error::Missing(_)) {
        return Err(error);
    }
    reindex(context, manifest)?;
    Err(Error::Missing(format!("the TOC of {manifest}")))
}
