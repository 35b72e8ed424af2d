//! What follows from a number of bytes: who may take how many of them.

use pierhead_bundle_server::{RECENT_MEMORY, WORKER_MEMORY as WORKER};

use super::{MIB, Origins, Profile};
use crate::config::Config;

/// Fewer bytes cannot be divided.
pub(super) const LEAST: u64 = 128 * MIB;

/// The process before it does anything: its code, threads, and the catalogue of some ten thousand blobs.
const BASE: u64 = 24 * MIB;
/// Documents on their way in, which are held whole.
const DOCUMENTS: u64 = 24 * MIB;
/// A connection with TLS.
const CONNECTION: u64 = 64 << 10;

/// What so many workers have in common.
fn shared(workers: u64) -> u64 {
    let recent = u64::try_from(RECENT_MEMORY).unwrap_or(u64::MAX);
    if workers > 0 { recent } else { 0 }
}

/// Bytes by key; their sum stays below three quarters of the whole. The last one is the page cache's and the sockets', which the
/// kernel counts with us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    /// 0: no bundles.
    pub(crate) workers: u64,
    pub(crate) connections: u64,
    pub(crate) answers: u64,
    pub(crate) small_blobs: u64,
}

impl Budget {
    /// Divides `bytes`: each gets what the profile wants, else what `defaults` have, as far as they go.
    pub(crate) fn of(bytes: u64, defaults: &Config, profile: Option<&Profile>) -> Self {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let wanted = match profile {
            Some(profile) => Self {
                workers: profile.workers,
                connections: profile.connections,
                answers: profile.answers * MIB,
                small_blobs: profile.small_blobs * MIB,
            },
            None => Self {
                workers: count(defaults.bundle.workers),
                connections: count(defaults.limits.connections),
                answers: count(defaults.limits.response_memory),
                small_blobs: defaults.cache.memory,
            },
        };
        let work = (bytes - bytes / 4).saturating_sub(BASE + DOCUMENTS);
        let workers = wanted.workers.min(work / 3 * 2 / WORKER);
        let rest = work - shared(workers) - workers * WORKER;
        Self {
            workers,
            connections: wanted.connections.min(rest / 4 / CONNECTION).max(16),
            // An operator's budget beyond that of the profile gives them more. Less than a manifest's own bound would
            // refuse all.
            answers: wanted
                .answers
                .max(bytes / 8)
                .min(rest / 2 / MIB * MIB)
                .max(8 * MIB),
            small_blobs: wanted.small_blobs.min(rest / 16 / MIB * MIB),
        }
    }

    /// The most that all of it takes, in bytes.
    #[cfg(test)]
    pub(crate) fn most(&self) -> u64 {
        let connections = self.connections * CONNECTION;
        let workers = shared(self.workers) + self.workers * WORKER;
        BASE + DOCUMENTS + workers + connections + self.answers + self.small_blobs
    }

    /// Makes it the defaults.
    pub(super) fn take(self, config: &mut Config, origins: &mut Origins) {
        let whole = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        if self.workers == 0 {
            config.bundle.size = None;
        }
        config.bundle.workers = whole(self.workers.max(1));
        config.limits.connections = whole(self.connections);
        config.limits.response_memory = whole(self.answers);
        config.cache.memory = self.small_blobs;
        let keys = [
            (self.workers == 0).then_some("bundle.size"),
            Some("bundle.workers"),
            Some("limits.connections"),
        ];
        let keys = keys.into_iter().flatten();
        origins.extend(keys.map(|key| (key, "what limits.memory leaves for it".to_owned())));
    }
}
