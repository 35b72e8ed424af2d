//! Queues an image for indexing again, after the server lost one of its own files about the image
//! (such as its table of contents or a layer index), or found such a file damaged.

use pierhead_oci::Digest;

use super::context::Context;
use super::plan_store::fresh_plan_keys;
use crate::Error;

/// Deletes the fresh plans of a ready image, and queues the image for indexing. (Fresh plans are
/// the bundle plans for workers without base images; a ready image is one whose indexing is
/// complete.) The plans with base images stay, since the server checks at each use that all records
/// of the plan still exist.
pub(super) fn reindex(context: &Context, manifest: &Digest) -> Result<(), Error> {
    for key in fresh_plan_keys(manifest) {
        context.plans.delete(&key);
    }
    if let Some(client) = context.images.reset(manifest) {
        context.queue.index(*manifest, client);
    }
    Ok(())
}
