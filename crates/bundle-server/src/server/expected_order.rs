//! Computes the order in which a container start is expected to use the file contents of an image.

use pierhead_oci::Digest;

use super::context::Context;
use super::documents::Documents;
use super::toc_access::load_base_toc;
use crate::Error;
use crate::plan::{Expected, Traced};
use pierhead_toc::{ImageToc, Source, TocView, Tree};

/// Maximum number of other versions of an image whose traces are searched.
const MAX_VERSIONS: usize = 20;

/// Returns the expected order of the contents of an image. The order follows from a trace (a
/// recorded container start) of this image or of another version, and from the config of the image.
pub(super) fn expected_order(
    context: &Context,
    manifest: &Digest,
    documents: &Documents,
    toc: &ImageToc,
    source: &dyn Source,
) -> Result<Expected, Error> {
    let tree = Tree::of(TocView::mounted(toc))?;
    let mut traced = Vec::new();
    if let Some((image, files)) = trace_for(context, manifest)? {
        let its_own = load_base_toc(context, &image)?;
        let old = its_own.as_ref().map(|it| Tree::of(TocView::mounted(it)));
        let old = old.and_then(Result::ok);
        let files = files.into_iter().map(|path| Traced {
            content: old.as_ref().and_then(|tree| {
                let number = tree.file(path.as_bytes())?;
                Some(tree.content(number)?.0)
            }),
            path: path.into_bytes(),
        });
        traced.extend(files);
    }
    Expected::of(&tree, &traced, &documents.start, source)
}

/// Finds the trace to use for an image. Returns the trace and the traced image: the image itself,
/// or else the latest other version with a trace.
pub(super) fn trace_for(
    context: &Context,
    manifest: &Digest,
) -> Result<Option<(Digest, Vec<String>)>, Error> {
    let mut of = vec![*manifest];
    let versions = context.images.versions(manifest);
    of.extend(versions.into_iter().take(MAX_VERSIONS));
    for image in of {
        if let Some(files) = context.traces.merged(&image)? {
            return Ok(Some((image, files)));
        }
    }
    Ok(None)
}
