//! The table of the profiles, for the daemon, the chart and its page (`cargo xtask chart --write`).
//!
//! This file imports nothing: `xtask` compiles it, too.

/// One profile. Each figure is the default of a key, or the source of such a default.
#[derive(Debug, PartialEq, Eq)]
pub struct Profile {
    /// The value of `profile`.
    pub name: &'static str,
    /// MiB; in fewer it does not start. What a pod requests.
    pub least_memory: u64,
    /// MiB; the most that it plans with (`limits.memory`). What a pod is bound to.
    pub memory: u64,
    /// Percent of the machine's memory, where no cgroup has a limit: never more than `memory`.
    pub memory_share: u64,
    /// Cores that this process must be allowed to run on.
    pub least_cores: usize,
    /// Thousandths of a core that a pod requests, and is bound to (0: to none).
    pub cpu: (u32, u32),
    /// The most worker threads; 0: one for each core.
    pub threads: usize,
    /// `limits.cores`: the last so many; 0: all.
    pub cores: usize,
    /// `cache.size`: percent of the file system; 0: "auto".
    pub disk: u8,
    /// `limits.upstream_bandwidth`, 10^6 bytes a second; 0: "off".
    pub bandwidth: u64,
    /// `limits.downloads`.
    pub fetches: usize,
    /// `limits.connections`, as far as the memory goes.
    pub connections: u64,
    /// MiB: `the memory of responses`, as far as the memory goes.
    pub answers: u64,
    /// MiB: small blobs in memory, as far as it goes.
    pub small_blobs: u64,
    /// `limits.pause_under`.
    pub rest_under: &'static [&'static str],
    /// `bundle.workers`, as far as the memory goes; 0: no bundles.
    pub workers: u64,
    /// Percent of a core for each of them.
    pub worker_cpu: u32,
    /// `cache.daily_write_budget`, GiB; 0: as many as come. `docs/explanation/dpu-sizing.md` derives it.
    pub written_per_day: u64,
}

/// All of them, the smallest first.
pub static PROFILES: [Profile; 4] = [
    // Half a core and 256 MiB: what is left on a card that does something else.
    Profile {
        name: "small",
        least_memory: 128,
        memory: 256,
        memory_share: 10,
        least_cores: 1,
        cpu: (100, 500),
        threads: 1,
        cores: 0,
        disk: 25,
        bandwidth: 50,
        fetches: 16,
        connections: 512,
        answers: 48,
        small_blobs: 4,
        rest_under: &["memory", "cpu"],
        workers: 0,
        worker_cpu: 25,
        written_per_day: 8,
    },
    // 8 Cortex-A72, 16 GB, 64 GB of eMMC; a tenth of its slowest port, of 25 Gb/s.
    Profile {
        name: "bluefield2",
        least_memory: 512,
        memory: 1024,
        memory_share: 8,
        least_cores: 2,
        cpu: (500, 2000),
        threads: 0,
        cores: 2,
        disk: 25,
        bandwidth: 312,
        fetches: 32,
        connections: 1920,
        answers: 128,
        small_blobs: 4,
        rest_under: &["memory", "cpu"],
        workers: 1,
        worker_cpu: 25,
        written_per_day: 16,
    },
    // 16 Cortex-A78, 32 GB, 128 GB of eMMC or NVMe; a tenth of its slowest port, of 100 Gb/s.
    Profile {
        name: "bluefield3",
        least_memory: 1024,
        memory: 2048,
        memory_share: 8,
        least_cores: 4,
        cpu: (1000, 4000),
        threads: 0,
        cores: 4,
        disk: 40,
        bandwidth: 1250,
        fetches: 32,
        connections: 4096,
        answers: 256,
        small_blobs: 16,
        rest_under: &["memory", "cpu"],
        workers: 2,
        worker_cpu: 50,
        written_per_day: 32,
    },
    // A host that serves many.
    Profile {
        name: "server",
        least_memory: 2048,
        memory: 4096,
        memory_share: 25,
        least_cores: 2,
        cpu: (2000, 0),
        threads: 0,
        cores: 0,
        disk: 0,
        bandwidth: 0,
        fetches: 64,
        connections: 8192,
        answers: 512,
        small_blobs: 64,
        rest_under: &["memory"],
        workers: 4,
        worker_cpu: 100,
        written_per_day: 0,
    },
];
