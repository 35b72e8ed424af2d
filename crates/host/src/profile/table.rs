//! The table of sizing profiles (memory, CPU and limits for each kind of machine). The daemon uses
//! this table. `cargo xtask chart --write` makes the resources of the Helm chart and a page of the
//! documentation from the table.
//!
//! This file imports nothing, because `xtask` compiles it, too.

/// A sizing profile. Each value is the default of a configuration key, or the source of such a
/// default.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// The value of the key `profile`.
    pub name: &'static str,
    /// Minimum memory in MiB: with less memory, pierhead does not start. The minimum memory is also
    /// the memory request of a pod.
    pub min_memory: u64,
    /// Maximum of `limits.memory` in MiB. This maximum is also the memory limit of a pod.
    pub memory: u64,
    /// Default of `limits.memory` as a percentage of the machine's memory, which is used if no
    /// cgroup has a limit. The resulting amount is at most `memory`.
    pub memory_share: u64,
    /// Minimum number of cores that the process may run on.
    pub min_cores: usize,
    /// CPU request and CPU limit of a pod, in thousandths of a core. A limit of 0 means no limit.
    pub cpu: (u32, u32),
    /// Maximum number of worker threads of the runtime. 0 means one thread for each core.
    pub threads: usize,
    /// Default of `limits.cores`: the process runs on this number of CPUs, counted from the last
    /// CPU. 0 means all CPUs.
    pub cores: usize,
    /// Default of `cache.size` as a percentage of the file system. 0 means "auto".
    pub cache_size: u8,
    /// Default of `limits.upstream_bandwidth` in 10^6 bytes per second. 0 means "off".
    pub upstream_bandwidth: u64,
    /// Default of `limits.downloads`, the maximum number of concurrent downloads.
    pub downloads: usize,
    /// Default of `limits.connections`. If the memory is too small, the default is lower.
    pub connections: u64,
    /// Memory for responses in MiB. If the memory budget is too small, responses get less.
    pub response_memory: u64,
    /// Memory for small blobs in MiB. If the memory budget is too small, small blobs get less.
    pub small_blob_memory: u64,
    /// Default of `limits.pause_under`: the resources whose pressure pauses background work.
    pub pause_under: &'static [&'static str],
    /// Default of `bundle.workers`. If the memory is too small, the default is lower. 0 means that
    /// bundles are off.
    pub bundle_workers: u64,
    /// Maximum CPU time of each bundle worker, as a percentage of a core.
    pub worker_cpu: u32,
    /// Default of `cache.daily_write_budget` in GiB. 0 means no limit.
    /// `docs/explanation/dpu-sizing.md` explains the choice of the number.
    pub daily_write_budget: u64,
}

/// All profiles, the smallest first.
pub static PROFILES: [Profile; 4] = [
    // This profile is for half a core and 256 MiB of memory, on a DPU whose other cores and memory
    // serve another purpose.
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
    // This profile is for the NVIDIA BlueField-2: 8 Cortex-A72, 16 GB of memory, 64 GB of eMMC. The
    // bandwidth is a tenth of the bandwidth of the slowest port (25 Gb/s).
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
    // This profile is for the NVIDIA BlueField-3: 16 Cortex-A78, 32 GB of memory, 128 GB of eMMC or
    // NVMe. The bandwidth is a tenth of the bandwidth of the slowest port (100 Gb/s).
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
    // This profile is for a server that serves many clients.
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
