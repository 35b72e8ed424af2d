//! Starts the daemon: opens all components in an order in which an early failure has no side
//! effects.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pierhead_host::pressure::PressureMonitor;
use pierhead_host::{BackgroundTask, BackgroundWork, Panics};
use pierhead_proxy::Proxy;
use pierhead_remote::{Client, Spawner};
use prometheus_client::registry::Registry as Metrics;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::background_tasks::BackgroundTasks;
use super::client_listeners::ClientListeners;
use super::logging::Level;
use super::reload::DaemonState;
use super::request_log::RequestQueue;
use super::service::Service;
use super::service_manager::{ServiceManager, State};
use super::start_report::{log_start, write_ready_file};
use super::tier;
use super::{bind, components, interface_watch};
use crate::admin::tier_limit::{SharedMonitor, TierLimit, follow_pressure};
use crate::admin::{Admin, Components, DaemonInfo, HostResourceMetrics};
use crate::cli::serve::ServeArgs;
use crate::config::crate_configs;
use crate::config::environment::Environment;
use crate::config::{self, Config};

/// Starts the daemon. Returns as soon as the daemon serves clients.
pub(super) async fn start(
    args: &ServeArgs,
    environment: Environment,
    config: Config,
    level: Level,
) -> anyhow::Result<Service> {
    let started = Instant::now();
    let service_manager = Arc::new(ServiceManager::connect(&environment.service_manager));
    if let Some(warning) = interface_watch::management_link_warning(&config).await {
        tracing::warn!("{warning}");
    }
    // `listen_addresses` may wait for the network interface, so it runs before this process locks
    // the data folder.
    let addresses = interface_watch::listen_addresses(&config, &service_manager).await?;
    let cpu_budget = crate_configs::cpu_budget(&environment.machine);
    let background = BackgroundWork::with_cpu_budget(cpu_budget.clone());
    let client = registry_client(&environment, &config, background.panics()).await?;
    let request_queue = Arc::<RequestQueue>::default();
    let cache = components::open_cache(&config, &request_queue, &background).await?;
    components::check_clock(&cache)?;
    let request_log = components::open_request_log(&config, request_queue, &background).await?;
    let bundle_server = components::open_bundle_server(&config, &cache, &background).await?;
    let (bundle_server, bundle_failure) = match bundle_server {
        Ok(bundle_server) => (bundle_server, None),
        Err(why) => (None, Some(why)),
    };
    let settings = pierhead_proxy::Config {
        cpu_budget,
        ..crate_configs::proxy(&config)
    };
    let proxy = {
        let (cache, client, bundle_server) = (cache.clone(), client.clone(), bundle_server.clone());
        move || Proxy::with_bundle_server(cache, client, settings, bundle_server)
    };
    let proxy = tokio::task::spawn_blocking(proxy).await?;
    if let Some(why) = bundle_failure {
        proxy.set_bundle_server_failure(why);
    }

    let (is_stopping, stopping) = watch::channel(false);
    let tls = crate_configs::tls(&config);
    let panics = background.panics().clone();
    let mut listeners = ClientListeners::new(proxy.clone(), tls, panics, stopping.clone());
    let bound = bind::bind_all(&addresses)?;
    let admin_listener = bind::bind_admin(&config)?;
    for (address, listener) in addresses.iter().zip(bound) {
        listeners.add(*address, listener)?;
    }
    let listen = listeners.bound_addresses().borrow().clone();
    let admin_address = admin_listener
        .as_ref()
        .map(TcpListener::local_addr)
        .transpose()?;

    let mut background_tasks = BackgroundTasks::new(background.panics().clone());
    let (changes, address_changes) = mpsc::channel(1);
    if let Some(name) = config.network.interface.clone() {
        let watched = interface_watch::watched_addresses(config.listen.clone(), &addresses);
        background_tasks.spawn(BackgroundTask::InterfaceWatch, move || {
            interface_watch::watch(name.clone(), watched.clone(), changes.clone())
        });
    }
    let tier_limit = TierLimit::of(&cache);
    let shrinking_limit = tier_limit
        .clone()
        .filter(|_| tier::follows_pressure(&config));
    let mut monitor = PressureMonitor::new(
        background.clone(),
        &config.limits.pause_under,
        "limits.pause_under",
        Path::new("/"),
    );
    if shrinking_limit.is_some() {
        monitor = monitor.reporting_memory("the fast tier in memory", Path::new("/"));
    }
    let pressure = monitor.metrics();
    let monitor: SharedMonitor = Arc::new(monitor.into());
    background_tasks.spawn(BackgroundTask::PressureMonitor, move || {
        follow_pressure(monitor.clone(), shrinking_limit.clone())
    });
    let hot_ranges_proxy = proxy.clone();
    background_tasks.spawn(BackgroundTask::HotRanges, move || {
        let proxy = hot_ranges_proxy.clone();
        async move { proxy.report_hot_ranges().await }
    });
    let stored_images_proxy = proxy.clone();
    background_tasks.spawn(BackgroundTask::StoredImages, move || {
        let proxy = stored_images_proxy.clone();
        async move { proxy.offer_stored().await }
    });
    let threads = tokio::runtime::Handle::current().metrics().num_workers();
    let host_resources = HostResourceMetrics::new(&config, &environment.machine, threads);
    let (effective, effective_config) = watch::channel(config::show(&config));
    if let Some(listener) = admin_listener {
        let mut metrics = Metrics::default();
        if let Some(request_log) = &request_log {
            request_log.register(metrics.sub_registry_with_prefix("pierhead_request_log"));
        }
        let state = Admin::new(
            Components {
                cache: cache.clone(),
                client: client.clone(),
                proxy: proxy.clone(),
                bundle_server: bundle_server.clone(),
                tier_limit,
                pressure,
                host_resources: host_resources.clone(),
                metrics,
            },
            started,
            DaemonInfo {
                listen: listeners.bound_addresses(),
                tls: config.tls.cert.is_some(),
                data: &config.data,
                config: args.config.as_deref(),
                effective: effective_config,
            },
            stopping,
        );
        let (admin, listener) = (Arc::new(state), Arc::new(listener));
        background_tasks.spawn(BackgroundTask::AdminListener, move || {
            Arc::clone(&admin).serve(listener.clone())
        });
    }
    log_start(&config, &cache, &listen, admin_address);
    if let Some(path) = &args.ready_file {
        write_ready_file(path, &listen, admin_address)?;
    }
    tracing::info!("pierhead is ready");
    service_manager.notify(State::Ready);
    let mut keepalives = BackgroundTasks::new(background.panics().clone());
    let keepalive_sender = Arc::clone(&service_manager);
    keepalives.spawn(BackgroundTask::ServiceManager, move || {
        Arc::clone(&keepalive_sender).send_keepalives()
    });
    Ok(Service {
        state: DaemonState {
            config,
            environment,
            client,
            cache,
            proxy,
            level,
            host_resources,
            effective,
        },
        listeners,
        address_changes,
        background_tasks,
        request_log,
        bundle_server,
        is_stopping,
        service_manager,
        keepalives,
    })
}

/// Creates the registry client. Reads the files that the configuration names on a blocking thread,
/// so that the daemon handles signals even if the disk hangs.
async fn registry_client(
    environment: &Environment,
    config: &Config,
    panics: &Panics,
) -> anyhow::Result<Client> {
    let (environment, config) = (environment.clone(), config.clone());
    let panics = panics.clone();
    let create = move || {
        for warning in config::warnings(&config) {
            tracing::warn!("{warning}");
        }
        let mut remote =
            crate_configs::remote(&config, &environment).map_err(anyhow::Error::msg)?;
        remote.spawner = Spawner::new(move |task| {
            drop(panics.spawn(BackgroundTask::UpstreamConnection, task));
        });
        Ok(Client::new(remote)?)
    };
    tokio::task::spawn_blocking(create).await?
}
