//! The state that all jobs and requests of a bundle server share: a struct without methods.

use std::sync::Arc;

use parking_lot::Mutex;
use pierhead_host::KeyedLock;
use pierhead_toc::{Blobs, FileDigest};

use super::config::Config;
use super::counters::Counters;
use super::image_store::ImageStore;
use super::job_queue::JobQueue;
use super::layer_cache::LayerCache;
use super::pack_usage::PackUsage;
use super::paths::Paths;
use super::plan_store::PlanStore;
use super::toc_store::TocStore;
use super::trace_store::TraceStore;
use super::write_budget::WriteMeter;
use crate::image_database::ImageDatabase;
use crate::pack::Packs;

pub(crate) struct Context {
    pub(super) config: Config,
    pub(super) blobs: Arc<dyn Blobs>,
    pub(super) paths: Paths,
    pub(super) image_database: Arc<ImageDatabase>,
    pub(super) packs: Arc<Packs>,
    pub(super) pack_usage: PackUsage,
    pub(super) images: ImageStore,
    pub(super) queue: JobQueue,
    pub(super) plans: PlanStore,
    pub(super) tocs: TocStore,
    pub(super) layers: LayerCache,
    pub(super) traces: TraceStore,
    pub(super) counters: Counters,
    pub(super) meter: WriteMeter,
    /// Locks of the plans that the server is making, by the key of the request.
    pub(super) planning: KeyedLock<FileDigest>,
    /// Locks of pairs (a new and an old image) for which a request makes patches. Lock order:
    /// `planning` before `pairing`.
    pub(super) pairing: KeyedLock<FileDigest>,
    /// The lock that a thread holds while it runs a prune for the operator.
    pub(super) pruning: Mutex<()>,
}
