//! The table of sizing profiles (memory, CPU and limits for each kind of machine). The daemon reads
//! it. `cargo xtask chart --write` makes the chart's resources and a page of the documentation from
//! it.
//!
//! This file imports nothing, because `xtask` compiles it, too.

/// One profile. Each value is the default of a configuration key, or the source of such a default.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// The value of the key `profile`.
    pub name: &'static str,
    /// Minimum memory in MiB: with less, pierhead does not start. The memory request of a pod.
    pub min_memory: u64,
    /// Maximum of `limits.memory` in MiB. The memory limit of a pod.
    pub memory: u64,
    /// `limits.memory` as a percentage of the machine's memory, used if no cgroup has a limit. The
    /// result is at most `memory`.
    pub memory_share: u64,
    /// Minimum number of cores that the process may run on.
    pub min_cores: usize,
    /// CPU request and CPU limit of a pod, in thousandths of a core. A limit of 0 means no limit.
    pub cpu: (u32, u32),
    /// Maximum number of worker threads of the runtime. 0 means one for each core.
    pub threads: usize,
    /// `limits.cores`: the process runs on this number of CPUs, counted from the last CPU. 0 means
    /// all CPUs.
    pub cores: usize,
    /// `cache.size` as a percentage of the file system. 0 means "auto".
    pub cache_size: u8,
    /// `limits.upstream_bandwidth` in 10^6 bytes per second. 0 means "off".
    pub upstream_bandwidth: u64,
    /// `limits.downloads`, a number of concurrent downloads.
    pub downloads: usize,
    /// `limits.connections`; less if the memory is too small.
    pub connections: u64,
    /// Memory of responses in MiB; less if the memory is too small.
    pub response_memory: u64,
    /// Memory of small blobs in MiB; less if the memory is too small.
    pub small_blob_memory: u64,
    /// `limits.pause_under`: the resources whose pressure pauses background work.
    pub pause_under: &'static [&'static str],
    /// `bundle.workers`; less if the memory is too small. 0 means no bundles.
    pub bundle_workers: u64,
    /// Maximum CPU time of each bundle worker, as a percentage of a core.
    pub worker_cpu: u32,
    /// `cache.daily_write_budget` in GiB. 0 means no limit. `docs/explanation/dpu-sizing.md`
    /// explains the choice of the number.
    pub daily_write_budget: u64,
}

/// All profiles, the smallest first.
pub static PROFILES: [Profile; 4] = [
    // Half a core and 256 MiB of memory, for a DPU whose other cores and memory serve another
    // purpose.
    Profile {
        name: "small",
        min_memory: 128,
        memory: 256,
        memory_share: 10,
        min_cores: 1,
        cpu: (100, 500),
        threads: 1,
        cores: 0,
        cache_size: 25,
        upstream_bandwidth: 50,
        downloads: 16,
        connections: 512,
        response_memory: 48,
        small_blob_memory: 4,
        pause_under: &["memory", "cpu"],
        bundle_workers: 0,
        worker_cpu: 25,
        daily_write_budget: 8,
    },
    // NVIDIA BlueField-2: 8 Cortex-A72, 16 GB of memory, 64 GB of eMMC. The bandwidth is a tenth of
    // its slowest port (25 Gb/s).
    Profile {
        name: "bluefield2",
        min_memory: 512,
        memory: 1024,
        memory_share: 8,
        min_cores: 2,
        cpu: (500, 2000),
        threads: 0,
        cores: 2,
        cache_size: 25,
        upstream_bandwidth: 312,
        downloads: 32,
        connections: 1920,
        response_memory: 128,
        small_blob_memory: 4,
        pause_under: &["memory", "cpu"],
        bundle_workers: 1,
        worker_cpu: 25,
        daily_write_budget: 16,
    },
    // NVIDIA BlueField-3: 16 Cortex-A78, 32 GB of memory, 128 GB of eMMC or NVMe. The bandwidth is
    // a tenth of its slowest port (100 Gb/s).
    Profile {
        name: "bluefield3",
        min_memory: 1024,
        memory: 2048,
        memory_share: 8,
        min_cores: 4,
        cpu: (1000, 4000),
        threads: 0,
        cores: 4,
        cache_size: 40,
        upstream_bandwidth: 1250,
        downloads: 32,
        connections: 4096,
        response_memory: 256,
        small_blob_memory: 16,
        pause_under: &["memory", "cpu"],
        bundle_workers: 2,
        worker_cpu: 50,
        daily_write_budget: 32,
    },
    // A server that serves many clients.
    Profile {
        name: "server",
        min_memory: 2048,
        memory: 4096,
        memory_share: 25,
        min_cores: 2,
        cpu: (2000, 0),
        threads: 0,
        cores: 0,
        cache_size: 0,
        upstream_bandwidth: 0,
        downloads: 64,
        connections: 8192,
        response_memory: 512,
        small_blob_memory: 64,
        pause_under: &["memory"],
        bundle_workers: 4,
        worker_cpu: 100,
        daily_write_budget: 0,
    },
];
