//! Reports the order in which a container start is expected to open files, and whether bundles of
//! the image already send the files in this order.

use std::collections::HashMap;

use pierhead_oci::Digest;

use super::bundle_header::TocSizes;
use super::context::Context;
use super::documents::Documents;
use super::expected_order::{expected_order, trace_for};
use super::image_sources::contents;
use super::plan_store::request_key;
use super::toc_access::load_toc;
use crate::Error;
use crate::plan::Expected;
use pierhead_bundle::api::{MAX_TRACE, OrderSource, StartOrder};
use pierhead_toc::ImageToc;
use pierhead_toc::Tree;

/// Returns the order in which a container start is expected to open files. Reads the programs that
/// a container start runs.
///
/// # Errors
/// [`Error::Missing`] when the image is not ready. `Io` for errors of the disk.
pub(super) fn start_order(context: &Context, manifest: &Digest) -> Result<StartOrder, Error> {
    let missing = || Error::Missing(manifest.to_string());
    let (layers, layers_waiting) = context
        .images
        .layers_of_ready(manifest)
        .ok_or_else(missing)?;
    let toc = load_toc(context, manifest)?;
    let documents = Documents::read(&*context.blobs, manifest)?;
    let source = contents(context, &[*manifest]);
    let expected = expected_order(context, manifest, &documents, &toc, &source)?;
    let traced = trace_for(context, manifest)?;
    let tree = Tree::of(pierhead_toc::TocView::mounted(&toc))?;
    // A content may have several paths. A path that the trace names takes precedence.
    let mut names = HashMap::new();
    for path in traced.iter().flat_map(|(_, files)| files) {
        if let Some(number) = tree.file(path.as_bytes()) {
            names.entry(number).or_insert_with(|| path.clone());
        }
    }
    for (at, number) in tree.files() {
        if expected.rank(number) != u32::MAX {
            let name = || String::from_utf8_lossy(tree.path(at)).into_owned();
            names.entry(number).or_insert_with(name);
        }
    }
    let files = expected.in_order().into_iter();
    let files = files.filter_map(|number| names.remove(&number));
    let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    Ok(StartOrder {
        files: files.take(MAX_TRACE).collect(),
        source: match traced {
            Some((image, _)) => OrderSource::Trace {
                image,
                clients: Some(context.traces.clients(&image)?),
            },
            None => OrderSource::Config,
        },
        applied: is_applied(context, manifest, &toc, &expected)?,
        layers: count(layers),
        layers_waiting: count(layers_waiting),
    })
}

/// Whether the plan for workers without base images starts with the expected files. If the plan
/// does not exist, the result is true, since a new plan gets this order.
fn is_applied(
    context: &Context,
    manifest: &Digest,
    toc: &ImageToc,
    expected: &Expected,
) -> Result<bool, Error> {
    let Some(plan) = context.plans.peek(&request_key(manifest, &[], false))? else {
        return Ok(true);
    };
    let header = plan.header()?;
    let sizes = TocSizes {
        want: toc,
        base_images: &[],
    };
    let mut last = 0;
    for frame in header.frames.cursor(&sizes)? {
        let ranks = frame?.members.into_iter();
        let rank = ranks.map(|it| expected.rank(it.content)).min();
        let rank = rank.unwrap_or(u32::MAX);
        if rank < last {
            return Ok(false);
        }
        last = rank;
    }
    Ok(true)
}
