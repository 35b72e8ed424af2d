//! Describes an image by its layers and file contents, and compares the transfer sizes of an
//! update.

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

/// Maximum number of files of the start order that the report lists.
const MAX_HOT_FILES: usize = 20;

/// The layers and file contents of an image. Its serialized form is the object of `pierhead inspect
/// --json`.
#[derive(Serialize)]
pub struct InspectReport {
    /// The full reference.
    pub image: String,
    /// The digest of the manifest.
    pub digest: String,
    /// Number of entries of the merged tree.
    pub entries: u32,
    /// Number of distinct file contents of the merged tree.
    pub contents: u32,
    /// Sum of the bytes of these contents.
    pub bytes: u64,
    /// Bytes of the compressed layers.
    pub bytes_compressed: u64,
    /// The layers of the image, the lowest first.
    pub layers: Vec<LayerSummary>,
    /// Contents that other images of the store share with this one.
    pub shared: Vec<SharedContents>,
    /// The first files of the start order (the order in which a container start is expected to open
    /// files).
    pub hot: Vec<String>,
    /// The start order, if there is a server that supports it.
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
    /// The media type.
    pub media_type: String,
    /// Bytes of the compressed layer.
    pub bytes_compressed: u64,
    /// Number of distinct file contents.
    pub files: usize,
    /// Bytes of these contents.
    pub bytes: u64,
}

/// The contents that two images have in common.
#[derive(Serialize)]
pub struct SharedContents {
    /// The other image.
    pub image: String,
    /// Number of common contents.
    pub contents: u64,
    /// Bytes of these contents.
    pub bytes: u64,
}

/// Describes an image.
///
/// # Errors
/// Errors of the lookup: see [`Error`].
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

/// The contents that each other image of the store shares with this one, the most bytes first.
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
