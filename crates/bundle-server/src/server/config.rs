//! The configuration of the bundle server: its data folder, budgets, limits and their defaults.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_host::BackgroundWork;
use pierhead_toc::layer::Limits;

use super::write_budget::{UnlimitedWrites, WriteBudget};
use crate::pack::PackSettings;

/// Maximum memory of each of the [`Config::workers`] in bytes: 60 MB (a layer, a TOC, frames) while
/// this worker indexes an image, and 150 MB while it makes optimized patches or packs.
pub const INDEXER_MEMORY: u64 = 60_000_000 + 150_000_000;
/// Bytes of decoded frames that stay in memory for the next read of a single file.
pub const RECENT_MEMORY: usize = 32 << 20;

/// CPU time after which indexing one client's image is interrupted for another client's image. Most
/// images take less time.
const TIME_SLICE: Duration = Duration::from_secs(3);
/// CPU time that indexing one image may take, before the additional time per MiB. Indexing and
/// packing take 0.05 s per MiB on an x86 core (`redis:7.0.15-u10`: 1.5 s for 33 MB), and about 0.2
/// s per MiB on a core of a DPU. With [`INDEX_TIME_PER_MEBIBYTE`], the limit is ten times the time
/// of a DPU for layers that compress well. Ordinary images of any size stay far below the limit.
const INDEX_TIME: Duration = Duration::from_secs(60);
/// Additional CPU time that indexing may take per MiB of compressed layers
/// ([`Config::index_time`]).
pub(super) const INDEX_TIME_PER_MEBIBYTE: Duration = Duration::from_secs(2);
/// Maximum memory of the TOCs (tables of contents) of plans in progress, in bytes: a dozen TOCs of
/// 84 000 files each. If an eighth of `limits.memory` is less, the eighth is the maximum.
pub const MAX_TOC_MEMORY: u64 = 64 << 20;
/// The zstd level at which packs are first compressed. Level 3 packs 100 MB/s per core, while level
/// 18 packs 3 MB/s. `docs/formats/disk.md` has the measurements.
const FAST_LEVEL: i32 = 3;
/// Maximum CPU time of a background thread in percent of a core. On the smallest machines (one
/// core), half of the core stays for clients.
const WORKER_CPU_PERCENT: u32 = 50;
/// Maximum bytes that the server reads and compresses to make patches while a client waits. At
/// level 3, with as many bytes of the base image, this takes about 1.5 s.
const MAX_FAST_PATCH_BYTES: u64 = 96 << 20;
/// Maximum bytes that the server decodes and compresses again for one bundle with reused chunks,
/// which takes about 1 s of one core.
const MAX_RECOMPRESSED_BYTES: u64 = 256 << 20;
/// How long one plan may make its bundle shorter, by patches and by reused chunks, while a client
/// waits. The work of `MAX_FAST_PATCH_BYTES` and `MAX_RECOMPRESSED_BYTES` takes 2.5 s on an x86
/// core, and about four times as long on a core of a DPU. After this time, the plan has whole
/// packed frames.
const DELTA_TIMEOUT: Duration = Duration::from_secs(15);
/// How long one plan may take while a client waits. After this time, the request fails, and the
/// planning slot is free for another client.
const PLAN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client can resume the download of a superseded bundle: long enough for the restart of
/// its machine.
const RESUME_WINDOW: Duration = Duration::from_secs(15 * 60);

/// Settings and limits of a bundle server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder. In this folder, the folders `index/`, `packs/`, `plans/` and `directory/`
    /// belong to the bundle server.
    pub data: PathBuf,
    /// Maximum number of bytes of packs on disk.
    pub pack_budget: u64,
    /// Maximum number of bytes of bundle plans on disk, including the patches in these plans.
    pub plan_budget: u64,
    /// Memory for TOCs in bytes, for all plans in progress together. A base image whose TOC does
    /// not fit beside the TOCs in use counts as unknown. The TOC of a wanted image counts, too, but
    /// is read even if it does not fit.
    pub toc_memory: u64,
    /// Number of indexing threads. The same number of low-priority threads make optimized frames
    /// and patches. The low-priority threads pause while an image is indexed. An indexing thread
    /// and a low-priority thread together take up to [`INDEXER_MEMORY`] bytes.
    pub workers: usize,
    /// CPU time of indexing one image before the image of another client may interrupt the work.
    /// For an image that is interrupted, this time doubles with each of the first two
    /// interruptions, since its indexing starts over with the layer in progress. After three
    /// interruptions, the image waits for all other images.
    pub time_slice: Duration,
    /// CPU time that all attempts to index one image may take together. Each MiB of its compressed
    /// layers adds 2 s. If indexing takes longer, the server refuses the image.
    pub index_time: Duration,
    /// Maximum CPU time of each thread in percent of a core, unless a client waits for the result
    /// of the thread.
    pub cpu_percent: u32,
    /// The zstd level at which packs are finally compressed.
    pub optimized_level: i32,
    /// The zstd level at which packs are first compressed.
    pub fast_level: i32,
    /// Number of older versions of a repository from which the server makes patches to a new
    /// version.
    pub max_pairs: usize,
    /// Maximum bytes that the server reads and compresses for a patch while a client waits. If a
    /// patch needs more, the server sends no patch, and reuses chunks of the base image.
    pub fast_patch_bytes: u64,
    /// Maximum bytes that the server decodes and compresses again for one bundle with reused
    /// chunks, unless the bundle would be longer than the changed files.
    pub recompress_budget: u64,
    /// How long one plan may make its bundle shorter, by patches and by reused chunks, while a
    /// client waits. After this time, the plan has whole packed frames.
    pub delta_timeout: Duration,
    /// How long one plan may take while a client waits. After this time, the plan fails with
    /// [`crate::Error::PlanTimeout`].
    pub plan_timeout: Duration,
    /// How long a client can resume an interrupted download after a newer bundle has superseded its
    /// bundle.
    pub resume_window: Duration,
    /// Limits for the size and the structure of each layer. The server refuses an image that
    /// exceeds them.
    pub limits: Limits,
    /// The switch that pauses low-priority work under pressure.
    pub background: BackgroundWork,
    /// Counts the bytes that the server writes, and limits them.
    pub write_budget: Arc<dyn WriteBudget>,
}

impl Config {
    /// Creates a configuration with defaults for everything except the folder and the two budgets
    /// in bytes.
    pub fn new(data: impl Into<PathBuf>, pack_budget: u64, plan_budget: u64) -> Self {
        Self {
            data: data.into(),
            pack_budget,
            plan_budget,
            toc_memory: MAX_TOC_MEMORY,
            workers: 1,
            time_slice: TIME_SLICE,
            index_time: INDEX_TIME,
            cpu_percent: WORKER_CPU_PERCENT,
            optimized_level: PackSettings::default().level,
            fast_level: FAST_LEVEL,
            max_pairs: 2,
            fast_patch_bytes: MAX_FAST_PATCH_BYTES,
            recompress_budget: MAX_RECOMPRESSED_BYTES,
            delta_timeout: DELTA_TIMEOUT,
            plan_timeout: PLAN_TIMEOUT,
            resume_window: RESUME_WINDOW,
            limits: Limits::default(),
            background: BackgroundWork::default(),
            write_budget: Arc::new(UnlimitedWrites),
        }
    }
}
