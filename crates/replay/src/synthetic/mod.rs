//! Generates registry workloads: sequences of requests that have the statistics of two published
//! studies of registries. A seed always gives the same workload.
//!
//! Repositories consist of shared base layers and release versions. A release creates a new
//! manifest, a new config and new upper layers. Many nodes pull the release at once, and the oldest
//! version is deleted. A node requests a manifest at each pull, and then those blobs that its own
//! bounded store lacks. The workload consists of the requests of all nodes.
//!
//! Anwar et al., "Improving Docker registry design based on production workload analysis", FAST
//! '18; Zhao et al., "Large-scale analysis of the Docker Hub dataset", CLUSTER '19. See
//! [`WorkloadParameters`].

mod catalogue;
mod node;
mod object_kind;
mod parameters;
mod random;
mod workload;

pub use object_kind::ObjectKind;
pub use parameters::{ParameterOutOfRange, WorkloadParameters};
pub use workload::Workload;
