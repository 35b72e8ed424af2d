//! Resolves host names without a thread for each lookup: lookups are limited in time and number,
//! and answers are cached for a short time.
//!
//! 1. A lookup ends within [`LOOKUP_LIMIT`], regardless of what the name servers do.
//! 2. One resolver runs at most [`MAX_LOOKUPS`] lookups at once. Configured upstreams use one
//!    resolver, and all other registries use a second resolver. Thus names that clients choose
//!    never delay lookups of configured upstreams.
//! 3. A cached answer is returned without a wait for a name server. Once per [`CHECK_INTERVAL`], a
//!    lookup waits for a check of the system files, at most [`CHECK_LIMIT`]. The first lookup waits
//!    until these files are read.

mod name_servers;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use pierhead_ttl_cache::TtlCache;
use tokio::sync::Semaphore;
use tokio::time::{timeout, timeout_at};

use crate::connect::resolve::{Resolve, ResolveFuture};
use crate::metrics::{DnsMetrics, LookupResult};
use name_servers::NameServers;
pub(crate) use name_servers::SystemFiles;

/// Time limit of one lookup, including the time in the queue.
const LOOKUP_LIMIT: Duration = Duration::from_millis(2500);

/// Maximum time that a DNS lookup waits in the queue. The rest of [`LOOKUP_LIMIT`] is enough for a
/// query.
const QUEUE_LIMIT: Duration = Duration::from_secs(1);

/// Maximum number of concurrent DNS lookups of one resolver: enough for all requests of eight
/// clients that may wait at the same time. The number is limited, because a lookup without an
/// answer holds up to eight UDP sockets.
const MAX_LOOKUPS: usize = 512;

/// Maximum number of cached DNS answers of one resolver.
const CACHE_SIZE: usize = 1024;

/// Minimum cache time of DNS answers with addresses, even if the TTL of their records is shorter.
const MIN_TTL: Duration = Duration::from_secs(1);
/// Maximum cache time of DNS answers with addresses, even if the TTL of their records is longer.
const MAX_TTL: Duration = Duration::from_secs(60);

/// How long a negative DNS answer (no such name, or no address) is cached.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);

/// How long a failed DNS lookup is cached, so that the retries of one request query a silent name
/// server only once.
const FAILURE_TTL: Duration = Duration::from_secs(1);

/// Interval between checks of whether the system's resolver files changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum time that a DNS lookup waits for a check of whether the system's resolver files changed.
const CHECK_LIMIT: Duration = Duration::from_millis(250);

/// Resolves names like the system: `/etc/hosts` first, then the name servers of `/etc/resolv.conf`.
/// Clones share all their state.
#[derive(Clone)]
pub(crate) struct SystemResolver(Arc<Shared>);

struct Shared {
    files: SystemFiles,
    /// The name servers of the system. `None` before the first lookup.
    name_servers: ArcSwapOption<NameServers>,
    /// Time of the last check of the system files.
    checked: Mutex<Option<Instant>>,
    cache: TtlCache<String, ResolvedAddresses>,
    running: Semaphore,
    metrics: DnsMetrics,
}

impl std::fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SystemResolver")
    }
}

/// The reason why a lookup found no address.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LookupError {
    /// A name server states that the name does not exist, or has no address.
    #[error("the name does not exist, or has no address")]
    NotFound,
    /// Each name server failed or refused the query.
    #[error("{0}")]
    Failed(String),
    /// No name server answered within the time limit.
    #[error("no name server answered within {LOOKUP_LIMIT:?}")]
    Timeout,
    /// Too many other lookups are running.
    #[error("too many lookups are running")]
    Busy,
}

impl From<LookupError> for io::Error {
    fn from(error: LookupError) -> Self {
        let kind = match error {
            LookupError::NotFound => io::ErrorKind::NotFound,
            LookupError::Failed(_) => io::ErrorKind::Other,
            LookupError::Timeout => io::ErrorKind::TimedOut,
            LookupError::Busy => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

/// The addresses that a lookup found, preferred addresses first.
type ResolvedAddresses = Result<Arc<[IpAddr]>, LookupError>;

/// Computes how long an answer is cached.
fn cache_time(answer: &Result<name_servers::FoundAddresses, LookupError>) -> Duration {
    match answer {
        Ok(found) => found.ttl.clamp(MIN_TTL, MAX_TTL),
        Err(LookupError::NotFound) => NEGATIVE_TTL,
        Err(_) => FAILURE_TTL,
    }
}

impl SystemResolver {
    /// Creates a resolver. The resolver does no I/O before the first lookup.
    pub(crate) fn new(files: SystemFiles, metrics: DnsMetrics) -> Self {
        Self::bounded(files, metrics, MAX_LOOKUPS)
    }

    fn bounded(files: SystemFiles, metrics: DnsMetrics, max_lookups: usize) -> Self {
        Self(Arc::new(Shared {
            files,
            name_servers: ArcSwapOption::empty(),
            checked: Mutex::new(None),
            // Each answer has its own lifetime.
            cache: TtlCache::new(CACHE_SIZE, None),
            running: Semaphore::new(max_lookups),
            metrics,
        }))
    }

    /// Resolves `host` to its addresses. `host` is in lower case and has no brackets.
    async fn lookup(&self, host: &str) -> ResolvedAddresses {
        if let Ok(address) = host.parse() {
            return Ok([address].into());
        }
        let deadline = tokio::time::Instant::now() + LOOKUP_LIMIT;
        let name_servers = timeout_at(deadline, self.name_servers()).await;
        let name_servers = name_servers.map_err(|_| LookupError::Timeout)?;
        if let Some(addresses) = name_servers.host(host) {
            return Ok(addresses);
        }
        let shared = &self.0;
        if let Some(cached) = shared.cache.get(host) {
            return cached;
        }
        let started = Instant::now();
        // `acquire` cannot fail, because the semaphore is never closed.
        let Ok(_permit) = timeout(QUEUE_LIMIT, shared.running.acquire()).await else {
            shared.metrics.ended(LookupResult::Busy, started.elapsed());
            return Err(LookupError::Busy);
        };
        let found = name_servers.lookup(host, deadline).await;
        let result = match &found {
            Ok(_) => LookupResult::Found,
            Err(LookupError::NotFound) => LookupResult::NotFound,
            Err(LookupError::Timeout) => LookupResult::Timeout,
            Err(_) => LookupResult::Failed,
        };
        shared.metrics.ended(result, started.elapsed());
        let ttl = cache_time(&found);
        let answer = found.map(|found| found.addresses);
        shared
            .cache
            .insert_for(host.to_owned(), answer.clone(), ttl);
        answer
    }

    /// Returns the current name servers of the system. If the disk hangs after the first read, one
    /// lookup per [`CHECK_INTERVAL`] waits for [`CHECK_LIMIT`], and the other lookups do not wait.
    async fn name_servers(&self) -> Arc<NameServers> {
        let current = self.0.name_servers.load_full();
        if current.is_none() || self.is_check_due() {
            let resolver = self.clone();
            let check = tokio::task::spawn_blocking(move || resolver.check_files());
            match current {
                Some(_) => drop(timeout(CHECK_LIMIT, check).await),
                None => drop(check.await),
            }
        }
        let current = self.0.name_servers.load_full();
        current.unwrap_or_else(|| Arc::new(NameServers::empty()))
    }

    fn is_check_due(&self) -> bool {
        let mut checked = self.0.checked.lock();
        let due = checked.is_none_or(|at| at.elapsed() >= CHECK_INTERVAL);
        if due {
            *checked = Some(Instant::now());
        }
        due
    }

    /// Reads the system files again if they have changed. Blocks.
    fn check_files(&self) {
        let shared = &self.0;
        let stamp = shared.files.stamp();
        let current = shared.name_servers.load();
        if current.as_ref().is_some_and(|it| it.stamp() == &stamp) {
            return;
        }
        match NameServers::read(&shared.files, stamp) {
            Ok(new) => {
                if current.is_some() {
                    tracing::info!(servers = %new, "the name servers have changed");
                }
                shared.name_servers.store(Some(Arc::new(new)));
                // The cached answers of the old name servers may now be wrong.
                shared.cache.clear();
            }
            Err(error) => tracing::warn!(
                file = %shared.files.resolv_conf.display(),
                %error,
                "cannot read the name servers; using the previous ones"
            ),
        }
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, host: String, port: u16) -> ResolveFuture {
        let resolver = self.clone();
        Box::pin(async move {
            let addresses = resolver.lookup(&host).await?;
            let addresses = addresses.iter().map(|address| (*address, port).into());
            Ok(addresses.collect::<Vec<SocketAddr>>())
        })
    }
}
