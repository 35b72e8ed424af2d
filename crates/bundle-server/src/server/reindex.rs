//! Makes the server index a ready image again, after a file of the image was lost or damaged.

use pierhead_oci::Digest;

use super::context::Context;
use super::plan_store::request_key;
use crate::Error;

/// Deletes the plans of a ready image, and queues the image for indexing.
pub(super) fn reindex(context: &Context, manifest: &Digest) -> Result<(), Error> {
    for layers in [false, true] {
        context.plans.delete(&request_key(manifest, &[], layers));
    }
    if let Some(client) = context.images.reset(manifest) {
        context.queue.index(*manifest, client);
    }
    Ok(())
}
