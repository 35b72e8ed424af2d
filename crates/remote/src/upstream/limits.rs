//! Limits of the registry client (document memory, bandwidth, lookups) that survive a reload. The
//! limits apply to the streams of the old and the new configuration together. The spawner of
//! connections also survives a reload.

use std::sync::Arc;

use crate::client::config::Config;
use crate::connect::resolve::Resolve;
use crate::connect::spawner::Spawner;
use crate::dns::{SystemFiles, SystemResolver};
use crate::exchange::bandwidth::Bandwidth;
use crate::exchange::document_memory::DocumentMemory;
use crate::metrics::{DnsMetrics, Metrics};

/// The limits of document memory, bandwidth and lookups. Clones share these limits.
#[derive(Clone)]
pub(crate) struct SharedLimits {
    pub(crate) documents: DocumentMemory,
    pub(crate) bandwidth: Arc<Bandwidth>,
    pub(crate) resolvers: Resolvers,
    pub(crate) spawner: Spawner,
}

impl SharedLimits {
    pub(crate) fn new(config: &Config, metrics: &Metrics) -> Self {
        Self {
            resolvers: Resolvers::new(config, &metrics.dns),
            spawner: config.spawner.clone(),
            documents: DocumentMemory::default(),
            bandwidth: Arc::new(Bandwidth::new(config.upstream_bandwidth)),
        }
    }
}

/// The two resolvers. Each resolver has its own limits and cache, so that names that clients invent
/// never delay lookups of configured upstreams.
#[derive(Clone)]
pub(crate) struct Resolvers {
    /// The resolver of configured upstreams and Docker Hub.
    pub(crate) configured: Arc<dyn Resolve>,
    /// The resolver of all other registries.
    pub(crate) unconfigured: Arc<dyn Resolve>,
}

impl Resolvers {
    fn new(config: &Config, metrics: &DnsMetrics) -> Self {
        let resolver = || -> Arc<dyn Resolve> {
            match &config.resolver {
                Some(resolver) => Arc::clone(resolver),
                None => {
                    let files = SystemFiles::default();
                    Arc::new(SystemResolver::new(files, metrics.clone()))
                }
            }
        };
        Self {
            configured: resolver(),
            unconfigured: resolver(),
        }
    }
}
