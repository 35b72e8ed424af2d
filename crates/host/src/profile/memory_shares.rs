//! Divides the memory budget of the process between its parts: connections, responses, small blobs,
//! and indexing threads.

use super::MIB;

/// Bytes of the idle process, for code, threads, and a catalog of about ten thousand blobs.
const BASE: u64 = 24 * MIB;
/// Bytes of the manifests that are being transferred, because the process holds manifests in
/// memory.
const MANIFESTS: u64 = 24 * MIB;
/// Bytes of one connection with TLS.
const CONNECTION: u64 = 64 << 10;

/// The memory of indexing threads, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct IndexerMemory {
    /// Bytes of memory of each thread.
    pub each: u64,
    /// Bytes that all threads share. Without indexing threads, this memory is not needed.
    pub shared: u64,
}

impl IndexerMemory {
    fn of(self, threads: u64) -> u64 {
        match threads {
            0 => 0,
            threads => self.shared + threads * self.each,
        }
    }
}

/// The parts of the memory budget. Together, these parts use at most three quarters of the budget.
/// The rest is for the page cache and the sockets, which the kernel counts as memory of the cgroup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryShares {
    /// Number of indexing threads. 0 means no bundles.
    pub indexing_threads: u64,
    /// Number of connections of clients.
    pub connections: u64,
    /// Bytes of responses that are being transferred.
    pub responses: u64,
    /// Bytes of small blobs that are kept in memory.
    pub small_blobs: u64,
}

impl MemoryShares {
    /// Divides `bytes`, which is at least [`super::MIN_MEMORY`]. Each part gets its value in
    /// `wanted`, or less if the memory is too small.
    pub fn divide(bytes: u64, wanted: Self, indexer: IndexerMemory) -> Self {
        let divisible = (bytes - bytes / 4).saturating_sub(BASE + MANIFESTS);
        let indexing_threads = wanted
            .indexing_threads
            .min(divisible / 3 * 2 / indexer.each.max(1));
        let rest = divisible.saturating_sub(indexer.of(indexing_threads));
        Self {
            indexing_threads,
            connections: wanted.connections.min(rest / 4 / CONNECTION).max(16),
            // If the operator sets a larger budget, responses get more than the profile wants. The
            // minimum is the size of one manifest: with less memory, pierhead would refuse all
            // requests.
            responses: wanted
                .responses
                .max(bytes / 8)
                .min(rest / 2 / MIB * MIB)
                .max(8 * MIB),
            small_blobs: wanted.small_blobs.min(rest / 16 / MIB * MIB),
        }
    }

    /// Returns the maximum number of bytes of memory that all parts use together.
    pub fn total(&self, indexer: IndexerMemory) -> u64 {
        let connections = self.connections * CONNECTION;
        let indexing_threads = indexer.of(self.indexing_threads);
        BASE + MANIFESTS + indexing_threads + connections + self.responses + self.small_blobs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MIN_MEMORY, PROFILES};
    use super::*;

    const INDEXER: IndexerMemory = IndexerMemory {
        each: 210_000_000,
        shared: 32 << 20,
    };

    proptest! {
        #[test]
        fn all_parts_stay_within_three_quarters(
            mib in MIN_MEMORY / MIB..64_000,
            indexing_threads in 0_u64..20,
            connections in 0_u64..100_000,
            responses in 0_u64..(8 << 30),
            small_blobs in 0_u64..(8 << 30),
        ) {
            let wanted = MemoryShares { indexing_threads, connections, responses, small_blobs };
            let shares = MemoryShares::divide(mib * MIB, wanted, INDEXER);
            prop_assert!(shares.total(INDEXER) <= mib * MIB / 4 * 3, "{shares:?}");
            prop_assert!(shares.connections >= 16 && shares.responses >= 8 * MIB);
            prop_assert!(shares.indexing_threads <= indexing_threads && shares.small_blobs <= small_blobs);
        }
    }

    #[test]
    fn the_memory_of_each_profile_suffices_for_its_values() {
        for profile in &PROFILES {
            let bytes = profile.memory * MIB;
            let shares = MemoryShares::divide(bytes, profile.memory_shares(), INDEXER);
            assert_eq!(shares, profile.memory_shares(), "{}", profile.name);
        }
    }

    #[test]
    fn a_small_budget_has_no_indexing_thread() {
        let wanted = PROFILES[1].memory_shares();
        assert_eq!(wanted.indexing_threads, 1);
        assert_eq!(
            MemoryShares::divide(200 * MIB, wanted, INDEXER).indexing_threads,
            0
        );
        assert_eq!(
            MemoryShares::divide(600 * MIB, wanted, INDEXER).indexing_threads,
            1
        );
    }
}
