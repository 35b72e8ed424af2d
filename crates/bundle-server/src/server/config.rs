//! The configuration of a bundle server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pierhead_host::BackgroundWork;
use pierhead_toc::layer::Limits;

use super::write_budget::{UnlimitedWrites, WriteBudget};
use crate::pack::PackSettings;

/// Maximum memory of each of [`Config::workers`] in bytes: 60 MB (a layer, a TOC, frames) while it
/// indexes an image, and 150 MB while it optimizes patches or packs.
pub const WORKER_MEMORY: u64 = 60_000_000 + 150_000_000;
/// Bytes of decoded frames that stay in memory for the next read of a single file.
pub const RECENT_MEMORY: usize = 32 << 20;

/// CPU time after which indexing one client's image is interrupted for another client's image. Most
/// images take less time.
const TIME_SLICE: Duration = Duration::from_secs(3);
/// CPU time that indexing one image may take, before the additional time per MiB. Indexing and
/// packing take 0.05 s of an x86 core per MiB (`redis:7.0.15-u10`: 1.5 s for 33 MB), and about 0.2
/// s of a DPU's core. With [`INDEX_TIME_PER_MEBIBYTE`], the limit is ten times the time of a DPU
/// for layers that compress well. Ordinary images of any size stay far below the limit.
const INDEX_TIME: Duration = Duration::from_secs(60);
/// Additional CPU time per MiB of compressed layers: see [`Config::index_time`].
pub(super) const INDEX_TIME_PER_MEBIBYTE: Duration = Duration::from_secs(2);
/// Memory in bytes for the TOCs (tables of contents) of base images: a dozen TOCs of 84 000 files
/// each.
const TOC_MEMORY: u64 = 64 << 20;
/// First zstd level of packs. Level 3 packs 100 MB/s per core, while level 18 packs 3 MB/s.
/// `docs/formats/disk.md` has the measurements.
const FAST_LEVEL: i32 = 3;
/// Maximum CPU time of a background thread in percent of a core. On the smallest machines (one
/// core), half of it stays for clients.
const WORKER_CPU_PERCENT: u32 = 50;
/// Maximum bytes to read and compress for patches while a client waits. At level 3, against as many
/// bytes of the base image, this takes about 1.5 s.
const MAX_FAST_PATCH_BYTES: u64 = 96 << 20;
/// Maximum bytes to decode and compress again for one bundle of reused chunks: about 1 s of one
/// core.
const MAX_RECOMPRESSED_BYTES: u64 = 256 << 20;
/// How long a client can resume the download of a superseded bundle: long enough for the restart of
/// its machine.
const RESUME_WINDOW: Duration = Duration::from_secs(15 * 60);

/// Settings and limits of a bundle server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The data folder. The folders `index/`, `packs/`, `plans/` and `directory/` in it belong to
    /// the bundle server.
    pub data: PathBuf,
    /// Maximum bytes of packs on disk.
    pub pack_budget: u64,
    /// Maximum bytes of plans on disk, with their patches.
    pub plan_budget: u64,
    /// Memory for the TOCs of base images in bytes, for all plans in progress together. A base
    /// image whose TOC does not fit counts as unknown. The TOC of the wanted image does not count
    /// against this limit.
    pub toc_memory: u64,
    /// Number of indexing threads. The same number of low-priority threads make optimized frames
    /// and patches. The low-priority threads pause while an image is indexed. An indexing thread
    /// and a low-priority thread together take up to [`WORKER_MEMORY`] bytes.
    pub workers: usize,
    /// CPU time of indexing one image before another client's image interrupts it. This time
    /// doubles with the first two interruptions of an image, since an interrupted image starts over
    /// with the layer in progress. After three interruptions the image waits for all others.
    pub time_slice: Duration,
    /// CPU time that indexing one image may take, all attempts together. Each MiB of its compressed
    /// layers adds 2 s. The server refuses an image that takes longer.
    pub index_time: Duration,
    /// Maximum CPU time of each thread in percent of a core, unless a client waits for its result.
    pub cpu_percent: u32,
    /// The final zstd level of packs.
    pub optimized_level: i32,
    /// The first zstd level of packs.
    pub fast_level: i32,
    /// Number of older versions of a repository from which the server makes patches to a new one.
    pub max_pairs: usize,
    /// Maximum bytes that the server reads and compresses for a patch while a client waits. If a
    /// patch needs more, the server reuses chunks.
    pub fast_patch_bytes: u64,
    /// Maximum bytes that the server decodes and compresses again for one bundle of reused chunks,
    /// unless the bundle would be longer than the changed files.
    pub recompress_budget: u64,
    /// How long an interrupted download can resume after its bundle was superseded.
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
    /// The defaults for everything but the folder and the budgets in bytes.
    pub fn new(data: impl Into<PathBuf>, pack_budget: u64, plan_budget: u64) -> Self {
        Self {
            data: data.into(),
            pack_budget,
            plan_budget,
            toc_memory: TOC_MEMORY,
            workers: 1,
            time_slice: TIME_SLICE,
            index_time: INDEX_TIME,
            cpu_percent: WORKER_CPU_PERCENT,
            optimized_level: PackSettings::default().level,
            fast_level: FAST_LEVEL,
            max_pairs: 2,
            fast_patch_bytes: MAX_FAST_PATCH_BYTES,
            recompress_budget: MAX_RECOMPRESSED_BYTES,
            resume_window: RESUME_WINDOW,
            limits: Limits::default(),
            background: BackgroundWork::default(),
            write_budget: Arc::new(UnlimitedWrites),
        }
    }
}
