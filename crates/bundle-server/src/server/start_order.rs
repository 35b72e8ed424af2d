//! Reports the expected order of file opens at a container start, and whether bundles already follow it.

use std::collections::HashMap;

use pierhead_oci::Digest;

use super::documents::Documents;
use super::plan_store::key;
use super::planner::TocSizes;
use super::{BundleServer, Inner, lock};
use crate::directory::Stage;
use crate::plan::Expected;
use pierhead_bundle::api::{MAX_TRACE, OrderSource, StartOrder};
use pierhead_toc::Tree;
use pierhead_toc::{Error, ImageToc};

impl BundleServer {
    /// Determines the start order of an image. Reads the programs that a start runs, which costs as much as ordering.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready (any more); `Io`.
    pub fn start_order(&self, manifest: &Digest) -> Result<StartOrder, Error> {
        let inner = &self.inner;
        let missing = || Error::Missing(manifest.to_string());
        let (layers, layers_waiting) = {
            let images = lock(&inner.images);
            let row = &images.get(manifest).ok_or_else(missing)?.row;
            let waiting = match &row.stage {
                Stage::Ready => 0,
                Stage::Fast(layers) => layers.len(),
                _ => return Err(missing()),
            };
            // The first is the config.
            (row.blobs.len().saturating_sub(1), waiting)
        };
        let table = inner.made_table(manifest)?;
        let documents = Documents::read(&*inner.blobs, manifest)?;
        let source = inner.contents(&[*manifest]);
        let expected = inner.expected(manifest, &documents, &table, &source)?;
        let traced = inner.traced_for(manifest)?;
        let tree = Tree::of(pierhead_toc::TocView::mounted(&table))?;
        // Uses the paths of the trace, since one content may have several paths.
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
                    clients: Some(inner.trace_clients(&image)?),
                },
                None => OrderSource::Config,
            },
            applied: inner.follows(manifest, &table, &expected)?,
            layers: count(layers),
            layers_waiting: count(layers_waiting),
        })
    }
}

impl Inner {
    /// Whether the plan for a worker without base images starts with the expected files. A plan that does not exist yet will.
    fn follows(
        &self,
        manifest: &Digest,
        table: &ImageToc,
        expected: &Expected,
    ) -> Result<bool, Error> {
        let Some(plan) = self.open(&key(manifest, &[], false))? else {
            return Ok(true);
        };
        let header = plan.header()?;
        let sizes = TocSizes {
            want: table,
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
}
