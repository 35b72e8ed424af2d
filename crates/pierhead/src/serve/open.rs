//! Opens what `serve` works with: the cache with its tiers, the library of bundles, the trace.

use std::sync::Arc;
use std::time::SystemTime;

use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::BackgroundWork;
use pierhead_oci::units::human_bytes;
use pierhead_proxy::Proxy;

use super::data;
use super::trace::{Notes, Trace};
use crate::clock;
use crate::config::{Config, Size};
use crate::exit_code::{ExitError, ExitReason, describe};
use crate::wiring;

/// The cache with its tiers, which takes the data folder.
pub(super) async fn cache(
    config: &Config,
    notes: &Arc<Notes>,
    rest: &BackgroundWork,
) -> anyhow::Result<Cache> {
    let recorder = config.request_log.file.is_some().then(|| notes.recorder());
    let (config, rest) = (config.clone(), rest.clone());
    let open = move || -> anyhow::Result<_> {
        let space =
            wiring::space(&config.data).map_err(|error| data::unseen(&config.data, error))?;
        // `auto` counts what the cache holds, which is known only once it is open; until then nothing is evicted.
        let provisional = match config.cache.size {
            Size::Auto => space.total,
            size => size.resolve(space.total, 0),
        };
        let mut settings = pierhead_cache::Config::new(&config.data, provisional);
        settings.min_free = config.cache.min_free.resolve(space.total, 0);
        settings.memory = config.cache.memory;
        settings.rest = rest;
        settings.recorder = recorder;
        let eviction = wiring::eviction(&config, provisional);
        // A pull is worth more than the time that it takes: without the tier all is served from the disk.
        settings.fast = crate::tier::open(&config.tier).unwrap_or_else(|error| {
            tracing::error!(%error, "there is no fast tier");
            None
        });
        let cache = Cache::open(settings, eviction);
        let cache = cache.map_err(|error| data::refused(&config.data, error))?;
        let capacity = capacity(&cache, &config)?;
        Ok((cache, capacity))
    };
    let (cache, capacity) = tokio::task::spawn_blocking(open).await??;
    cache.set_capacity(capacity).await;
    Ok(cache)
}

/// The library of bundles, unless there are to be none; the inner error says why it cannot be opened. Without it pulls
/// are served as ever.
pub(super) async fn library(
    config: &Config,
    cache: &Cache,
    rest: &BackgroundWork,
) -> anyhow::Result<Result<Option<BundleServer>, String>> {
    if config.bundle.size.is_none() {
        return Ok(Ok(None));
    }
    let (config, blobs, rest) = (config.clone(), Proxy::blobs(cache), rest.clone());
    let wear = Arc::new(wiring::Day(cache.clone()));
    let open = move || -> anyhow::Result<_> {
        let library = wiring::library(&config, wiring::space(&config.data)?);
        let library = pierhead_bundle_server::Config {
            background: rest,
            write_budget: wear,
            ..library
        };
        Ok(BundleServer::open(library, blobs))
    };
    Ok(match tokio::task::spawn_blocking(open).await?? {
        Ok(library) => Ok(Some(library)),
        Err(error) => {
            let error = describe(&anyhow::Error::new(error));
            tracing::error!(
                %error,
                "bundles cannot be had; make this file or folder readable and writable for pierhead, or delete it, and restart"
            );
            Err(error)
        }
    })
}

/// Where requests are recorded, if they are to be.
pub(super) async fn trace(
    config: &Config,
    notes: Arc<Notes>,
    rest: &BackgroundWork,
) -> anyhow::Result<Option<Trace>> {
    let Some(file) = config.request_log.file.clone() else {
        return Ok(None);
    };
    /// In two files; about a million requests of 60 bytes.
    const MAX_TRACE_BYTES: u64 = 64 << 20;
    let data = config.data.clone();
    let panics = rest.panics().clone();
    let start = move || Trace::start(notes, &file, MAX_TRACE_BYTES, &data, &panics);
    tokio::task::spawn_blocking(start).await?.map(Some)
}

/// The bound that `cache.size` means at this moment.
pub(super) fn capacity(cache: &Cache, config: &Config) -> anyhow::Result<u64> {
    let space = wiring::space(&config.data)?;
    let stat = cache.stat();
    let own = stat.used + stat.reserved + stat.names;
    let capacity = config
        .cache
        .size
        .resolve(space.total, space.free.saturating_add(own));
    let min_free = config.cache.min_free.resolve(space.total, 0);
    let can_have = space.free.saturating_add(own);
    if can_have <= min_free {
        tracing::warn!(
            "{data} has {} free, and {} keeps {}: what is in the cache is served, and nothing new stored. Free more than {} (`df -h {data}`), or \
             set cache.min_free lower",
            human_bytes(space.free),
            config.places.of("cache.min_free"),
            human_bytes(min_free),
            human_bytes(min_free - can_have),
            data = config.data.display(),
        );
    } else if let Some((what, fix)) = wiring::size_above_disk(config, capacity, can_have - min_free)
    {
        tracing::warn!("{what}: {fix}");
    }
    Ok(capacity)
}

/// A clock that cannot be right is no reason to keep back what is here, and no upstream will give anything by it.
pub(super) fn check_clock(cache: &Cache) -> Result<(), ExitError> {
    let Some(what) = clock::wrong(SystemTime::now()) else {
        return Ok(());
    };
    let fix = clock::FIX;
    if cache.stat().blobs == 0 {
        let message = format!("the clock: {what}, and the cache is empty. Set it: {fix}");
        return Err(ExitError::new(ExitReason::Clock, message));
    }
    tracing::error!("{what}: what is in the cache is served, and nothing else. Set it: {fix}");
    Ok(())
}
