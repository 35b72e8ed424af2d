//! Registry workloads made up after two studies of real ones, the same for a seed each time.
//!
//! Repositories stand on shared bases and release versions; a release makes a new manifest, a new config
//! and new upper layers, is rolled out to many nodes at once, and the oldest version dies. A node asks for
//! a manifest at each pull and then for what its own bounded store lacks. What arrives at the cache is
//! what the nodes' stores let through.
//!
//! Anwar et al., "Improving Docker registry design based on production workload analysis", FAST '18;
//! Zhao et al., "Large-scale analysis of the Docker Hub dataset", CLUSTER '19. See [`WorkloadParameters`].

mod catalogue;
mod kind;
mod lots;
mod node;
mod parameters;
mod workload;

pub use kind::Kind;
pub use parameters::{Unfit, WorkloadParameters};
pub use workload::Workload;
