//! Describes an image by its layers and file contents, and compares how many bytes an update
//! between two images transfers.

mod diff;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use pierhead_bundle::api::StartOrder;
use pierhead_oci::Reference;
use serde::Serialize;

use crate::{Error, Progress};
pub use diff::{BundleSize, DiffReport, TransferSize, diff};
pub(crate) use source::ImageDetails;
pub use source::ImageSource;
use source::tree_contents;

/// Maximum number of files of the start order (the files that a container opens while it starts, in
/// order) that the report lists.
const MAX_HOT_FILES: usize = 20;

/// The layers and file contents of an image. The serialized form is the output of
/// `pierhead inspect --json`.
#[derive(Serialize)]
pub struct InspectReport {
    /// Full reference of the image.
    pub image: String,
    /// Digest of the image's manifest.
    pub digest: String,
    /// Number of entries of the merged tree.
    pub entries: u32,
    /// Number of distinct file contents.
    pub contents: u32,
    /// Sum of the bytes of these contents.
    pub bytes: u64,
    /// Bytes of the compressed layers.
    pub bytes_compressed: u64,
    /// The layers of the image, the lowest first.
    pub layers: Vec<LayerSummary>,
    /// File contents that other images of the store share with this image.
    pub shared: Vec<SharedContents>,
    /// The first files of the start order (the order in which a container start is expected to open
    /// files).
    pub hot: Vec<String>,
    /// The start order, if the image comes from a server that supports start orders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_order: Option<StartOrder>,
}

/// One layer of an image.
#[derive(Serialize)]
pub struct LayerSummary {
    /// The digest of the compressed layer.
    pub digest: String,
    /// The digest of the uncompressed layer.
    pub diff_id: String,
    /// Media type of the layer.
    pub media_type: String,
    /// Bytes of the compressed layer.
    pub bytes_compressed: u64,
    /// Number of distinct file contents in the layer.
    pub files: usize,
    /// Sum of the bytes of these distinct contents.
    pub bytes: u64,
}

/// The file contents that two images have in common.
#[derive(Serialize)]
pub struct SharedContents {
    /// Reference of the other image.
    pub image: String,
    /// Number of common file contents.
    pub contents: u64,
    /// Sum of the bytes of the common contents.
    pub bytes: u64,
}

/// Looks up an image and describes its layers and file contents.
///
/// # Errors
/// Errors of the lookup: described at [`Error`].
pub fn inspect(
    source: &ImageSource,
    image: &Reference,
    progress: &dyn Progress,
) -> Result<InspectReport, Error> {
    let details = source.look_up(image, progress)?;
    let toc = &details.toc;
    let shared = shared_contents(source, &details)?;
    let start_order = source.start_order(&details)?;
    let files = start_order.iter().flat_map(|order| &order.files);
    Ok(InspectReport {
        image: details.image.to_string(),
        digest: details.digest.to_string(),
        entries: toc.entries(),
        contents: toc.visible(),
        bytes: tree_contents(toc).map(|(_, size)| size).sum(),
        bytes_compressed: details.layers.iter().map(|layer| layer.size).sum(),
        layers: layers(&details)?,
        shared,
        hot: files.take(MAX_HOT_FILES).cloned().collect(),
        start_order,
    })
}

fn layers(details: &ImageDetails) -> Result<Vec<LayerSummary>, Error> {
    let toc = &details.toc;
    let mut layers = Vec::new();
    for (blob, layer) in details.layers.iter().zip(toc.layers()) {
        let layer = layer?;
        let sizes = layer
            .files
            .iter()
            .filter_map(|number| toc.contents().size(*number));
        layers.push(LayerSummary {
            digest: blob.digest.to_string(),
            diff_id: layer.diff_id.to_string(),
            media_type: blob.media_type.to_string(),
            bytes_compressed: blob.size,
            files: layer.files.len(),
            bytes: sizes.sum(),
        });
    }
    Ok(layers)
}

/// Returns the file contents that each other image of the store shares with this image. The image
/// that shares the most bytes comes first.
fn shared_contents(
    source: &ImageSource,
    details: &ImageDetails,
) -> Result<Vec<SharedContents>, Error> {
    let mut shared = Vec::new();
    let Some((store, names)) = &source.store else {
        return Ok(shared);
    };
    let own: HashSet<_> = tree_contents(&details.toc)
        .map(|(content, _)| content)
        .collect();
    for other in store.images()? {
        if other.manifest == details.digest {
            continue;
        }
        let image = store.image(&other.manifest)?;
        let common = tree_contents(&image.toc).filter(|(content, _)| own.contains(content));
        let (mut contents, mut bytes) = (0, 0);
        common.for_each(|(_, size)| (contents, bytes) = (contents + 1, bytes + size));
        let name = names.of(&other.manifest);
        shared.push(SharedContents {
            image: name.unwrap_or_else(|| other.manifest.to_string()),
            contents,
            bytes,
        });
    }
    shared.sort_by_key(|shared| std::cmp::Reverse(shared.bytes));
    Ok(shared)
}
