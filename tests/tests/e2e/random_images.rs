//! Writes random images, which the crate `testkit` generates, as OCI layouts. Real registries and
//! unpackers, which are separate programs, read these layouts.

use std::path::Path;

use anyhow::{Context, Result};
use pierhead_testkit::images::{Image as Made, TreeOptions};
use pierhead_tests::layout::{Image, Layout};
use serde_json::json;

/// Two versions of a random image, with the tags `1` and `2`.
pub(crate) fn versions(folder: &Path, seed: u64, options: &TreeOptions) -> Result<Vec<Image>> {
    let layout = Layout::create(folder)?;
    let mut names = Vec::new();
    for version in [1, 2] {
        let options = TreeOptions {
            version,
            ..*options
        };
        let made = Made::tree(seed, &options).image;
        for blob in &made.blobs {
            layout.add(&blob.media_type, |sink| Ok(sink.write_all(&blob.bytes)?))?;
        }
        let mut root = None;
        for document in &made.documents {
            let bytes = &document.bytes;
            let added = layout.add(&document.media_type, |sink| Ok(sink.write_all(bytes)?))?;
            if document.digest == made.root {
                root = Some(added);
            }
        }
        let root = root.context("an image without a root")?;
        names.push((format!("library/random-{seed}:{version}"), json!(root)));
    }
    layout.name(&names)?;
    layout.images()
}
