//! Queues an image for indexing again, after the server lost one of its own files about the image
//! (such as its table of contents or a layer index), or found such a file damaged.

use pierhead_oci::Digest;

use super::context::Context;
use super::plan_store::request_key;
use crate::Error;

/// Deletes the plans of a ready image (an image whose indexing is complete), and queues the image
/// for indexing.
pub(super) fn reindex(context: &Context, manifest: &Digest) -> Result<(), Error> {
    for layers in [false, true] {
        context.plans.delete(&request_key(manifest, &[], layers));
    }
    if let Some(client) = context.images.reset(manifest) {
        context.queue.index(*manifest, client);
    }
    Ok(())
}
