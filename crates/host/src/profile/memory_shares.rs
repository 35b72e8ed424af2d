//! Divides the memory of the process between its parts.

use super::MIB;

/// The process before it does anything: its code, threads, and the catalogue of some ten thousand
/// blobs.
const BASE: u64 = 24 * MIB;
/// Manifests that are received, which the process holds whole.
const MANIFESTS: u64 = 24 * MIB;
/// A connection with TLS.
const CONNECTION: u64 = 64 << 10;

/// The memory that indexing threads take, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct WorkerMemory {
    /// For each thread.
    pub each: u64,
    /// For all of them together, when there is one.
    pub shared: u64,
}

impl WorkerMemory {
    fn of(self, workers: u64) -> u64 {
        match workers {
            0 => 0,
            workers => self.shared + workers * self.each,
        }
    }
}

/// The parts that take memory. Together they take at most three quarters of the memory. The page cache
/// and the sockets take the rest, which the kernel counts as memory of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryShares {
    /// Indexing threads; 0: no bundles.
    pub workers: u64,
    /// Connections of clients.
    pub connections: u64,
    /// Bytes of responses.
    pub responses: u64,
    /// Bytes of small blobs in memory.
    pub small_blobs: u64,
}

impl MemoryShares {
    /// Divides `bytes`, at least [`super::MIN_MEMORY`]. Each part gets what `wanted` has, as far as the
    /// memory goes.
    pub fn divide(bytes: u64, wanted: Self, worker: WorkerMemory) -> Self {
        let divisible = (bytes - bytes / 4).saturating_sub(BASE + MANIFESTS);
        let workers = wanted.workers.min(divisible / 3 * 2 / worker.each.max(1));
        let rest = divisible.saturating_sub(worker.of(workers));
        Self {
            workers,
            connections: wanted.connections.min(rest / 4 / CONNECTION).max(16),
            // A larger budget of an operator gives responses more than the profile wants. Fewer bytes
            // than the bound of one manifest would refuse all requests.
            responses: wanted
                .responses
                .max(bytes / 8)
                .min(rest / 2 / MIB * MIB)
                .max(8 * MIB),
            small_blobs: wanted.small_blobs.min(rest / 16 / MIB * MIB),
        }
    }

    /// The most that all parts take together, in bytes.
    pub fn total(&self, worker: WorkerMemory) -> u64 {
        let connections = self.connections * CONNECTION;
        let workers = worker.of(self.workers);
        BASE + MANIFESTS + workers + connections + self.responses + self.small_blobs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MIN_MEMORY, PROFILES};
    use super::*;

    const WORKER: WorkerMemory = WorkerMemory {
        each: 210_000_000,
        shared: 32 << 20,
    };

    proptest! {
        #[test]
        fn all_parts_stay_within_three_quarters(
            mib in MIN_MEMORY / MIB..64_000,
            workers in 0_u64..20,
            connections in 0_u64..100_000,
            responses in 0_u64..(8 << 30),
            small_blobs in 0_u64..(8 << 30),
        ) {
            let wanted = MemoryShares { workers, connections, responses, small_blobs };
            let shares = MemoryShares::divide(mib * MIB, wanted, WORKER);
            prop_assert!(shares.total(WORKER) <= mib * MIB / 4 * 3, "{shares:?}");
            prop_assert!(shares.connections >= 16 && shares.responses >= 8 * MIB);
            prop_assert!(shares.workers <= workers && shares.small_blobs <= small_blobs);
        }
    }

    #[test]
    fn each_profile_has_what_its_table_says() {
        for profile in &PROFILES {
            let bytes = profile.memory * MIB;
            let shares = MemoryShares::divide(bytes, profile.memory_shares(), WORKER);
            assert_eq!(shares, profile.memory_shares(), "{}", profile.name);
        }
    }

    #[test]
    fn little_memory_has_no_room_for_a_worker() {
        let wanted = PROFILES[1].memory_shares();
        assert_eq!(wanted.workers, 1);
        assert_eq!(MemoryShares::divide(200 * MIB, wanted, WORKER).workers, 0);
        assert_eq!(MemoryShares::divide(600 * MIB, wanted, WORKER).workers, 1);
    }
}
