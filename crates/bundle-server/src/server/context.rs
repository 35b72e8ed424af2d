//! The state that all work of a bundle server shares: plain data without behaviour.

use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_host::KeyedLock;
use pierhead_toc::{Blobs, FileDigest};

use super::config::Config;
use super::counters::Counters;
use super::image_directory::ImageDirectory;
use super::job_queue::JobQueue;
use super::layer_cache::LayerCache;
use super::pack_usage::PackUsage;
use super::paths::Paths;
use super::plan_store::PlanStore;
use super::toc_store::TocStore;
use super::trace_store::TraceStore;
use super::write_budget::WriteMeter;
use crate::directory::Directory;
use crate::pack::Packs;

pub(crate) struct Context {
    pub(super) config: Config,
    pub(super) blobs: Arc<dyn Blobs>,
    pub(super) paths: Paths,
    pub(super) directory: Arc<Directory>,
    pub(super) packs: Arc<Packs>,
    pub(super) pack_usage: PackUsage,
    pub(super) images: ImageDirectory,
    pub(super) queue: JobQueue,
    pub(super) plans: PlanStore,
    pub(super) tocs: TocStore,
    pub(super) layers: LayerCache,
    pub(super) traces: TraceStore,
    pub(super) counters: Counters,
    pub(super) meter: WriteMeter,
    /// Plans in progress, by the key of their request.
    pub(super) planning: KeyedLock<FileDigest>,
    /// Pairs of images for which a request makes patches. Taken after `planning`.
    pub(super) pairing: KeyedLock<FileDigest>,
    /// Held while the operator prunes.
    pub(super) pruning: Mutex<()>,
}
