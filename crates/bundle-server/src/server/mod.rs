//! The bundle server: indexes and packs images and plans their bundles in the background, and
//! serves these bundles.
//!
//! The server can make all of its files again from the blobs of the cache.
//!
//! The state of the server is divided among these modules, so that each part has one owner:
//! `image_store`, `job_queue`, `plan_store`, `toc_store`, `trace_store`, `layer_cache`,
//! `pack_usage`; `context` holds the values of all of these modules. The following modules work on
//! the state, from the bottom up: `toc_access` and `image_sources` (inputs), `indexing` (a new
//! image), `planner` (a request), `patches`, `optimize` and `reorder` (low priority), `maintenance`
//! and `unused_packs` (deletion), `threads` (which thread does what).

mod bundle_header;
mod chunk_reuse;
mod config;
mod context;
mod counters;
mod cpu_share;
mod documents;
mod expected_order;
mod frame_writer;
mod hot_ranges;
mod image;
mod image_contents;
mod image_job;
mod image_sources;
mod image_store;
mod indexing;
mod job_queue;
mod layer_cache;
mod maintenance;
mod open_layers;
mod optimize;
mod pack_usage;
mod patches;
mod paths;
mod plan_deadline;
mod plan_file;
mod plan_gate;
mod plan_input;
mod plan_store;
mod planner;
mod record_locations;
mod reindex;
mod reorder;
mod start_order;
mod stream;
mod threads;
mod toc_access;
mod toc_store;
mod trace_store;
mod unused_packs;
mod write_budget;

pub use config::{Config, INDEXER_MEMORY, MAX_TOC_MEMORY, RECENT_MEMORY};
pub use counters::Stat;
pub use hot_ranges::HotRanges;
pub use image::{Image, RankedBases, RequestBase, State};
pub use stream::{Bundle, Piece, SentFile, Stream};
pub use trace_store::RecordedTrace;
pub use write_budget::{UnlimitedWrites, WriteBudget};

use std::collections::HashSet;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use pierhead_bundle::api::StartOrder;
use pierhead_host::{ClientKey, KeyedLock};
use pierhead_oci::Digest;

use crate::Error;
use crate::image_database::ImageDatabase;
use crate::pack::{PackConfig, Packs};
use context::Context;
use counters::{Counters, count};
use image_contents::ImageContents;
use image_store::ImageStore;
use job_queue::JobQueue;
use layer_cache::LayerCache;
use pack_usage::PackUsage;
use paths::Paths;
use pierhead_toc::{Blobs, FileDigest, TocView, Tree};
use plan_store::{PlanStore, request_key, sent_key};
use toc_store::TocStore;
use trace_store::TraceStore;
use write_budget::{OUT_OF_BUDGET, WriteMeter};

/// Maximum number of plans in progress. While the server makes a plan, it holds TOCs, a frame and
/// the bases of the frame in memory.
const MAX_PLANNING: usize = 4;

/// The bundle server. All clones share one state. A method may block on the disk, unless its
/// documentation says otherwise.
#[derive(Clone)]
pub struct BundleServer {
    context: Arc<Context>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl BundleServer {
    /// Opens the data folder, rebuilds missing files, and starts the background threads.
    ///
    /// # Errors
    /// `Io` if a folder or a file cannot be used.
    pub fn open(config: Config, blobs: Arc<dyn Blobs>) -> Result<Self, Error> {
        let paths = Paths::open(&config.data)?;
        let packs = Packs::open(PackConfig::new(
            Paths::packs(&config.data),
            config.pack_budget,
        ))?;
        if packs.stat().packs == 0 {
            // All packs were deleted, so the numbers of packs start again. With these numbers, an
            // old plan could name records of another image, so all plans are deleted.
            paths.shrink_plans(0, &|_, path| paths::remove(path))?;
        }
        let (database, damage) = ImageDatabase::open(&Paths::image_database(&config.data))?;
        if let Some(what) = damage {
            tracing::warn!(what, "the image database is unusable; pierhead rebuilds it");
        }
        if database.is_new() {
            record_locations::find_locations(&packs, &database, &mut || Ok(()))?;
        }
        let (database, packs) = (Arc::new(database), Arc::new(packs));
        let queue = JobQueue::new();
        let meter = WriteMeter::new(config.write_budget.clone());
        let context = Arc::new(Context {
            images: ImageStore::open(database.clone(), &queue)?,
            plans: PlanStore::new(&config, paths.clone(), packs.clone(), meter.clone()),
            tocs: TocStore::new(paths.clone(), config.toc_memory),
            layers: LayerCache::new(&packs, &database, RECENT_MEMORY),
            traces: TraceStore::new(paths.clone()),
            pack_usage: PackUsage::default(),
            counters: Counters::default(),
            planning: KeyedLock::with_max_holders(MAX_PLANNING),
            pairing: KeyedLock::with_max_holders(MAX_PLANNING),
            pruning: Mutex::default(),
            config,
            blobs,
            paths,
            image_database: database,
            packs,
            queue,
            meter,
        });
        let threads = threads::start(&context)?;
        Ok(Self {
            context,
            threads: Arc::new(Mutex::new(threads)),
        })
    }

    /// Queues an image for indexing and packing, on behalf of the operator of this host.
    pub fn offer(&self, image: Image) {
        self.offer_for(ClientKey::OPERATOR, image);
    }

    /// Queues an image that `client` pulled for indexing and packing, unless the image is ready.
    /// The call does not block.
    pub fn offer_for(&self, client: ClientKey, image: Image) {
        let context = &self.context;
        context.images.offer(client, image, &context.queue);
    }

    /// Returns the state of an image as [`Self::awaited_by`] does, with the operator of this host
    /// as the waiting client.
    pub fn awaited(&self, manifest: &Digest) -> State {
        self.awaited_by(ClientKey::OPERATOR, manifest)
    }

    /// Returns the state of an image for which `client` waits. The server indexes such an image
    /// before all images without a waiting client, and on a whole core. The images of different
    /// clients take turns. Returns `Refused` when indexing has not started and
    /// [`Config::write_budget`] allows no more writes. The call does not block.
    pub fn awaited_by(&self, client: ClientKey, manifest: &Digest) -> State {
        let context = &self.context;
        let may_begin = || context.meter.may_write(true);
        let state = context
            .images
            .prioritize(manifest, client, may_begin, &context.queue);
        // Because of the refusal, the client pulls layers now, and does not wait for the write
        // budget of the next day.
        state.unwrap_or_else(|| State::Refused(OUT_OF_BUDGET.to_owned()))
    }

    /// Returns the state of an image. The call does not block.
    pub fn state(&self, manifest: &Digest) -> State {
        self.context.images.state(manifest)
    }

    /// Returns why the last attempt to index an image failed, as a text for clients, while the
    /// image waits for the next attempt. The call does not block.
    pub fn failure(&self, manifest: &Digest) -> Option<String> {
        self.context.images.failure(manifest)
    }

    /// Returns the digests of the config and the layers of a ready image. The call does not block.
    pub fn blobs(&self, manifest: &Digest) -> Option<Vec<Digest>> {
        self.context.images.blobs_of_ready(manifest)
    }

    /// Finds or makes the plan of a bundle as [`Self::bundle_for`] does, for the operator of this
    /// host.
    ///
    /// # Errors
    /// The same errors as from [`Self::bundle_for`].
    pub fn bundle(
        &self,
        want: &Digest,
        base_images: &[RequestBase],
        with_layers: bool,
    ) -> Result<Bundle, Error> {
        let base_images = self.rank_bases(want, base_images);
        self.bundle_for(ClientKey::OPERATOR, want, &base_images, with_layers)
    }

    /// Returns the base images that the bundle of `want` uses, in the order in which its plan uses
    /// them. A request calls this once, before [`Self::planned`] and [`Self::bundle_for`].
    pub fn rank_bases(&self, want: &Digest, base_images: &[RequestBase]) -> RankedBases {
        self.context.images.rank_bases(want, base_images)
    }

    /// Finds or makes the plan of a bundle: the list of all parts of the bundle. The server makes
    /// only a few plans at once, since making a plan holds TOCs in memory. A new plan counts
    /// towards the part of [`Config::plan_budget`] that `client` may use.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready, or no longer ready. [`Error::PlanTimeout`]
    /// after [`Config::plan_timeout`]. `Io` for errors of the disk.
    pub fn bundle_for(
        &self,
        client: ClientKey,
        want: &Digest,
        base_images: &RankedBases,
        with_layers: bool,
    ) -> Result<Bundle, Error> {
        let (context, RankedBases(ranked)) = (&self.context, base_images);
        // Most requests that wait for this lock then find that another request has made their plan.
        let _planning = context
            .planning
            .lock(request_key(want, ranked, with_layers));
        if let Some(found) = self.planned(want, base_images, with_layers)? {
            return Ok(found);
        }
        let planned = planner::plan(context, client, want, ranked, with_layers);
        let (key, plan) = planned.inspect_err(|error| {
            if matches!(error, Error::Missing(_)) {
                let _ = reindex::reindex(context, want);
            }
        })?;
        context.plans.link_sent(want, with_layers, &key, &plan);
        let sent = sent_key(want, with_layers, &plan.etag);
        context.plans.charge(client, &key, Some(sent), &plan);
        Ok(self.bundle_of(plan))
    }

    /// Returns the bundle for a request, if the plan of this bundle exists. Reads at most a few
    /// small files.
    ///
    /// # Errors
    /// `Io` for errors of the disk.
    pub fn planned(
        &self,
        want: &Digest,
        base_images: &RankedBases,
        with_layers: bool,
    ) -> Result<Option<Bundle>, Error> {
        let context = &self.context;
        let Some(key) = context.plans.key(want, &base_images.0, with_layers)? else {
            return Ok(None);
        };
        // A pack that the plan names may no longer exist, because it was optimized or evicted.
        let Some(plan) = context.plans.whole(&key)? else {
            return Ok(None);
        };
        count(&context.counters.plan_hits);
        context.plans.link_sent(want, with_layers, &key, &plan);
        Ok(Some(self.bundle_of(plan)))
    }

    /// Returns the bundle with this `ETag`, if a client received the bundle for this request and
    /// all records of its plan still exist. A newer bundle for the request may have superseded this
    /// bundle.
    ///
    /// # Errors
    /// `Io` for errors of the disk.
    pub fn superseded(
        &self,
        want: &Digest,
        base_images: &[RequestBase],
        with_layers: bool,
        etag: &str,
    ) -> Result<Option<Bundle>, Error> {
        let plan = self
            .context
            .plans
            .sent(want, base_images, with_layers, etag)?;
        Ok(plan.map(|plan| self.bundle_of(plan)))
    }

    fn bundle_of(&self, plan: Arc<plan_file::PlanFile>) -> Bundle {
        Bundle {
            plan,
            packs: self.context.packs.clone(),
        }
    }

    /// Returns a stream of one file content of an image, or `None` when the image has no such
    /// content.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready, or its layers no longer exist. `Io` for
    /// errors of the disk.
    pub fn file(&self, image: &Digest, content: &FileDigest) -> Result<Option<Stream>, Error> {
        let Some(size) = toc_access::size_in(&self.context, image, content)? else {
            return Ok(None);
        };
        let source = ImageContents {
            context: Arc::downgrade(&self.context),
            image: *image,
        };
        Ok(Some(Stream::of_file(Arc::new(source), *content, size)))
    }

    /// Records the files that a container start opened, in order, as the trace of this client.
    /// Files that the image does not have are skipped. If the image has none of the files, nothing
    /// is recorded.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready. `Io` for errors of the disk.
    pub fn trace(
        &self,
        client: ClientKey,
        image: &Digest,
        files: &[String],
    ) -> Result<RecordedTrace, Error> {
        let context = &self.context;
        if self.blobs(image).is_none() {
            return Err(Error::Missing(image.to_string()));
        }
        let toc = toc_access::load_toc(context, image)?;
        let tree = Tree::of(TocView::mounted(&toc))?;
        let mut seen = HashSet::new();
        let files = files
            .iter()
            .filter(|path| tree.file(path.as_bytes()).is_some() && seen.insert(path.as_str()));
        let recorded = context
            .traces
            .record(client, image, files.cloned().collect())?;
        if recorded.is_new {
            context.queue.reorder(*image);
        }
        Ok(recorded)
    }

    /// Returns the images that have a recorded trace, the latest first.
    pub fn traced_images(&self) -> Vec<Digest> {
        let mut ready = self.context.images.ready_images();
        ready.retain(|image| self.context.traces.has(image));
        ready
    }

    /// Returns the ranges of each cached layer that a container start reads, according to the trace
    /// of the image. Without a trace, the list is empty. If several layers have a content, only the
    /// uppermost of these layers counts, as in a mount. This method reads and decodes the ranges at
    /// low priority.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready, [`Error::Stopped`] at shutdown, and errors
    /// of the layers.
    pub fn hot_ranges(&self, image: &Digest) -> Result<Vec<HotRanges>, Error> {
        hot_ranges::hot_ranges(&self.context, image)
    }

    /// Returns the order in which a container start is expected to open files. The call reads the
    /// programs that a container start runs, which takes as long as it takes to order the image's
    /// frames.
    ///
    /// # Errors
    /// [`Error::Missing`] when the image is not ready, or no longer ready. `Io` for errors of the
    /// disk.
    pub fn start_order(&self, manifest: &Digest) -> Result<StartOrder, Error> {
        start_order::start_order(&self.context, manifest)
    }

    /// Deletes the files of images whose manifest or config is no longer cached. After that,
    /// deletes plans and packs, least recently used first, until packs, plans and indexes take at
    /// most `target` bytes. Files in use are not deleted. Returns the number of bytes that the
    /// remaining files take. A later request rebuilds deleted files of cached images.
    ///
    /// The call takes none of the slots for planning, since only the operator calls this method. A
    /// second call waits for the end of the first call, so that all calls together hold only one
    /// TOC in memory. While packs are deleted, no image is indexed. But indexing continues during
    /// the longer part of the work, in which the plans and TOCs that name packs are read and
    /// hashed.
    ///
    /// # Errors
    /// `Io` for errors of the disk. After an error about an unreadable plan or TOC, all other files
    /// were pruned.
    pub fn prune(&self, target: u64) -> Result<u64, Error> {
        let context = &self.context;
        let _pruning = context.pruning.lock();
        // If a plan is unreadable, unused packs are not deleted, but the least recently used files
        // are.
        let removed = unused_packs::remove_uncached_images(context);
        let (index, _) = context.paths.bytes();
        let room = target.saturating_sub(index);
        // Plans are deleted before packs, since many plans may use the same pack.
        let packs = context.packs.stat().bytes;
        context.plans.shrink(room.saturating_sub(packs))?;
        let plans = context.plans.bytes();
        context.packs.evict_to(room.saturating_sub(plans))?;
        record_locations::forget_locations(context)?;
        removed?;
        let (index, plans) = context.paths.bytes();
        Ok(index + plans + context.packs.stat().bytes)
    }

    /// Returns the current state of the server, and its counters since the start. The call looks at
    /// every file of the server.
    pub fn stat(&self) -> Stat {
        let context = &self.context;
        let images = context.images.counts();
        let packs = context.packs.stat();
        let (index, plans) = context.paths.bytes();
        Stat {
            ready: images.ready,
            waiting: images.waiting,
            refused: images.refused,
            fast_layers: images.fast_layers,
            jobs: context.queue.len() as u64,
            packs: packs.bytes,
            packs_budget: context.config.pack_budget,
            packs_evicted: packs.evicted,
            index,
            plans,
            plans_budget: context.config.plan_budget,
            ..context.counters.stat()
        }
    }

    /// Stops the background threads. Jobs that are not finished continue after the next start.
    pub fn close(&self) {
        self.context.queue.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The result is ignored: if the thread panicked, the panic was already counted and
            // logged.
            let _ = thread.join();
        }
        if let Err(error) = self.context.image_database.flush() {
            tracing::warn!(%error, "cannot write the image database; pierhead rebuilds it at the next start");
        }
    }
}
