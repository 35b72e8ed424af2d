//! Registry workloads made up after two studies of real ones, the same for a seed each time.
//!
//! Repositories stand on shared bases and release versions; a release makes a new manifest, a new config
//! and new upper layers, is rolled out to many nodes at once, and the oldest version dies. A node asks for
//! a manifest at each pull and then for what its own bounded store lacks. What arrives at the cache is
//! what the nodes' stores let through.
//!
//! Anwar et al., "Improving Docker registry design based on production workload analysis", FAST '18;
//! Zhao et al., "Large-scale analysis of the Docker Hub dataset", CLUSTER '19. See [`Parameters`].

mod catalogue;
mod lots;
mod node;
mod parameters;
mod workload;

pub use parameters::{Parameters, Unfit};
pub use workload::Workload;

/// What a key of a [`Workload`] stands for: its two lowest bits. A policy sees keys as equal or not, so
/// this tells it nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The manifest of one version.
    Manifest,
    /// Its config.
    Config,
    /// A layer, perhaps of many images.
    Layer,
}

impl Kind {
    fn mark(self, key: u64) -> u64 {
        key & !3 | self as u64
    }

    /// What a key of a [`Workload`] stands for.
    pub fn of(key: u64) -> Self {
        match key & 3 {
            0 => Self::Manifest,
            1 => Self::Config,
            _ => Self::Layer,
        }
    }
}
