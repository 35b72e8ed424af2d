//! Opens the components of the daemon: the cache (on disk and fast tier), the bundle server and the
//! request log.

use std::sync::Arc;

use pierhead_bundle_server::BundleServer;
use pierhead_cache::Cache;
use pierhead_host::BackgroundWork;
use pierhead_oci::units::human_bytes;
use pierhead_proxy::Proxy;

use super::clock_check;
use super::data_folder_error;
use super::request_log::{RequestLogWriter, RequestQueue};
use crate::cli::exit_code::{ExitError, ExitReason, describe};
use crate::config::crate_configs;
use crate::config::{self, Config, Size};
use pierhead_host::clock;

/// Opens the cache, with its fast tier if there is one, and locks the data folder.
pub(super) async fn open_cache(
    config: &Config,
    queue: &Arc<RequestQueue>,
    background: &BackgroundWork,
) -> anyhow::Result<Cache> {
    let recorder = config.request_log.file.is_some().then(|| queue.recorder());
    let (config, background) = (config.clone(), background.clone());
    let open = move || -> anyhow::Result<_> {
        let space = crate_configs::file_system_space(&config.data)
            .map_err(|error| data_folder_error::unreadable_file_system(&config.data, error))?;
        // `cache.size = "auto"` depends on the size of the cached blobs, which is known only after
        // the cache is open. So the cache is opened with this provisional capacity, which is large
        // enough that the cache evicts nothing.
        let provisional = match config.cache.size {
            Size::Auto => space.total,
            size => size.resolve(space.total, 0),
        };
        let mut settings = pierhead_cache::Config::new(&config.data, provisional);
        settings.min_free = config.cache.min_free.resolve(space.total, 0);
        settings.memory = config.cache.memory;
        settings.background = background;
        settings.recorder = recorder;
        let eviction = crate_configs::eviction(&config, provisional);
        // If the fast tier cannot be opened, pierhead serves from the disk alone: slow pulls are
        // better than none.
        settings.fast = super::tier::open(&config.tier).unwrap_or_else(|error| {
            tracing::error!(%error, "pierhead starts without the fast tier");
            None
        });
        let cache = Cache::open(settings, eviction);
        let cache = cache.map_err(|error| data_folder_error::cannot_open(&config.data, error))?;
        let capacity = capacity(&cache, &config)?;
        Ok((cache, capacity))
    };
    let (cache, capacity) = tokio::task::spawn_blocking(open).await??;
    cache.set_capacity(capacity).await;
    Ok(cache)
}

/// Opens the bundle server, unless bundles are off. If the bundle server cannot be opened, the
/// inner error states the cause, and pierhead serves pulls without bundles.
pub(super) async fn open_bundle_server(
    config: &Config,
    cache: &Cache,
    background: &BackgroundWork,
) -> anyhow::Result<Result<Option<BundleServer>, String>> {
    if config.bundle.size.is_none() {
        return Ok(Ok(None));
    }
    let (config, blobs) = (config.clone(), Proxy::blobs(cache));
    let background = background.clone();
    let write_budget = Arc::new(crate_configs::BundleWriteBudget(cache.clone()));
    let open = move || -> anyhow::Result<_> {
        let settings =
            crate_configs::bundle_server(&config, crate_configs::file_system_space(&config.data)?);
        let settings = pierhead_bundle_server::Config {
            background,
            write_budget,
            ..settings
        };
        Ok(BundleServer::open(settings, blobs))
    };
    Ok(match tokio::task::spawn_blocking(open).await?? {
        Ok(bundle_server) => Ok(Some(bundle_server)),
        Err(error) => {
            let text = error.client_text();
            tracing::error!(
                error = %describe(&anyhow::Error::new(error)),
                "pierhead starts without bundles; make this file or folder readable and writable for pierhead, or delete it, and restart"
            );
            Err(text)
        }
    })
}

/// Opens the request log, if `request_log.file` is set.
pub(super) async fn open_request_log(
    config: &Config,
    queue: Arc<RequestQueue>,
    background: &BackgroundWork,
) -> anyhow::Result<Option<RequestLogWriter>> {
    let Some(file) = config.request_log.file.clone() else {
        return Ok(None);
    };
    /// Maximum size of the request log and its rotated copy together, in bytes: about a million
    /// requests of 60 bytes.
    const MAX_LOG_BYTES: u64 = 64 << 20;
    let data = config.data.clone();
    let panics = background.panics().clone();
    let start = move || RequestLogWriter::start(queue, &file, MAX_LOG_BYTES, &data, &panics);
    tokio::task::spawn_blocking(start).await?.map(Some)
}

/// Resolves `cache.size` to bytes, from the space that the file system has now.
pub(super) fn capacity(cache: &Cache, config: &Config) -> anyhow::Result<u64> {
    let space = crate_configs::file_system_space(&config.data)?;
    let stat = cache.stat();
    let own = stat.used + stat.reserved + stat.names;
    let capacity = config
        .cache
        .size
        .resolve(space.total, space.free.saturating_add(own));
    let min_free = config.cache.min_free.resolve(space.total, 0);
    let available = space.free.saturating_add(own);
    if available <= min_free {
        tracing::warn!(
            "{data} has {} free, and {} reserves {}: pierhead serves cached blobs and stores no new ones. Free more than {} (`df -h {data}`), or \
             lower cache.min_free",
            human_bytes(space.free),
            config.key_locations.describe("cache.min_free"),
            human_bytes(min_free),
            human_bytes(min_free - available),
            data = config.data.display(),
        );
    } else if let Some((problem, fix)) =
        config::size_above_disk(config, capacity, available - min_free)
    {
        tracing::warn!("{problem}: {fix}");
    }
    Ok(capacity)
}

/// Checks the clock of the host. With a wrong clock, every TLS connection to an upstream fails, so
/// pierhead can only serve cached images.
pub(super) fn check_clock(cache: &Cache) -> Result<(), ExitError> {
    let Some(problem) = clock_check::problem(clock::now()) else {
        return Ok(());
    };
    let fix = clock_check::FIX;
    if cache.stat().blobs == 0 {
        let message = format!("the clock: {problem}, and the cache is empty. Set the clock: {fix}");
        return Err(ExitError::new(ExitReason::Clock, message));
    }
    tracing::error!("{problem}: pierhead serves cached images only. Set the clock: {fix}");
    Ok(())
}
