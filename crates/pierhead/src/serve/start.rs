//! A start: all that serves is opened and wired, in the order in which it can be refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pierhead_host::pressure::PressureMonitor;
use pierhead_host::{BackgroundTask, BackgroundWork};
use pierhead_proxy::Proxy;
use pierhead_remote::Client;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::announce::{announce, write_ready};
use super::background_tasks::BackgroundTasks;
use super::notify::{Notify, State};
use super::reload::Running;
use super::servers::Servers;
use super::service::Service;
use super::tier_limit::{TierLimit, follow_pressure};
use super::trace::Notes;
use super::{interface, listen, open};
use crate::admin::{About, Admin, Parts, Share};
use crate::cli::serve::ServeArgs;
use crate::config::{self, Config};
use crate::environment::Environment;
use crate::logging::Level;
use crate::{tier, wiring};

/// Returns as soon as clients are served.
pub(super) async fn start(
    args: &ServeArgs,
    environment: Environment,
    config: Config,
    level: Level,
) -> anyhow::Result<Service> {
    let started = Instant::now();
    let notify = Arc::new(Notify::new(&environment.supervisor));
    if let Some(warning) = interface::management(&config).await {
        tracing::warn!("{warning}");
    }
    // Before the data folder is taken: nobody is kept from it meanwhile.
    let wanted = interface::addresses(&config, &notify).await?;
    let client = client(&environment, &config).await?;
    let notes = Arc::<Notes>::default();
    let quota = wiring::quota(&environment.machine);
    let background = BackgroundWork::with_cpu_budget(quota.clone());
    let cache = open::cache(&config, &notes, &background).await?;
    open::check_clock(&cache)?;
    let trace = open::trace(&config, notes, &background).await?;
    let library = open::library(&config, &cache, &background).await?;
    let (library, library_failure) = match library {
        Ok(library) => (library, None),
        Err(why) => (None, Some(why)),
    };
    let settings = pierhead_proxy::Config {
        quota,
        ..wiring::proxy(&config)
    };
    let parts = (cache.clone(), client.clone());
    let of_proxy = library.clone();
    let proxy = move || Proxy::with_library(parts.0, parts.1, settings, of_proxy);
    let proxy = tokio::task::spawn_blocking(proxy).await?;
    if let Some(why) = library_failure {
        proxy.set_library_failure(why);
    }

    let (stop, stopped) = watch::channel(false);
    let mut servers = Servers::new(proxy.clone(), wiring::tls(&config), stopped.clone());
    let listeners = listen::bind_all(&wanted)?;
    let admin_listener = listen::bind_admin(&config)?;
    for (address, listener) in wanted.iter().zip(listeners) {
        servers.add(*address, listener)?;
    }
    let listen = servers.bound().borrow().clone();
    let admin_address = admin_listener
        .as_ref()
        .map(TcpListener::local_addr)
        .transpose()?;

    let mut background_tasks = BackgroundTasks::new(background.panics().clone());
    let (changes, changed) = mpsc::channel(1);
    if let Some(name) = config.network.interface.clone() {
        let bound = interface::bound_addresses(config.listen.clone(), &wanted);
        background_tasks.spawn(BackgroundTask::InterfaceWatch, move || {
            interface::follow(name.clone(), bound.clone(), changes.clone())
        });
    }
    let tier_limit = TierLimit::of(&cache);
    let following = tier_limit
        .clone()
        .filter(|_| tier::follows_pressure(&config));
    let under = &config.limits.pause_under;
    let mut monitor = PressureMonitor::new(
        background.clone(),
        under,
        "limits.pause_under",
        Path::new("/"),
    );
    if following.is_some() {
        monitor = monitor.reporting_memory("the fast tier in memory", Path::new("/"));
    }
    let pressure = monitor.metrics();
    let monitor = Arc::new(tokio::sync::Mutex::new(monitor));
    background_tasks.spawn(BackgroundTask::PressureMonitor, move || {
        follow_pressure(monitor.clone(), following.clone())
    });
    let of_traces = proxy.clone();
    background_tasks.spawn(BackgroundTask::HotRanges, move || {
        let proxy = of_traces.clone();
        async move { proxy.tell_hot().await }
    });
    let of_stored = proxy.clone();
    background_tasks.spawn(BackgroundTask::StoredImages, move || {
        let proxy = of_stored.clone();
        async move { proxy.offer_stored().await }
    });
    let threads = tokio::runtime::Handle::current().metrics().num_workers();
    let share = Share::new(&config, &environment.machine, threads);
    let (effective, shown) = watch::channel(config::show(&config));
    if let Some(listener) = admin_listener {
        let state = Admin::new(
            Parts {
                cache: cache.clone(),
                client: client.clone(),
                proxy: proxy.clone(),
                trace: trace.as_ref(),
                library: library.clone(),
                tier_limit,
                pressure,
                share: share.clone(),
            },
            started,
            About {
                listen: servers.bound(),
                tls: config.tls.cert.is_some(),
                data: &config.data,
                config: args.config.as_deref(),
                effective: shown,
            },
            stopped,
        );
        let (admin, listener) = (Arc::new(state), Arc::new(listener));
        background_tasks.spawn(BackgroundTask::AdminListener, move || {
            Arc::clone(&admin).serve(listener.clone())
        });
    }
    announce(&config, &cache, &listen, admin_address);
    if let Some(path) = &args.ready_file {
        write_ready(path, &listen, admin_address)?;
    }
    tracing::info!("pierhead is ready");
    notify.tell(State::Ready);
    let living = tokio::spawn(Arc::clone(&notify).live());
    Ok(Service {
        running: Running {
            config,
            environment,
            client,
            cache,
            proxy,
            level,
            share,
            effective,
        },
        servers,
        changed,
        background_tasks,
        trace,
        library,
        stop,
        notify,
        living,
    })
}

/// Whoever asks registries. What it reads may lie on a disk that hangs, which must not keep a signal from us.
async fn client(environment: &Environment, config: &Config) -> anyhow::Result<Client> {
    let (environment, config) = (environment.clone(), config.clone());
    let make = move || {
        for warning in wiring::warnings(&config) {
            tracing::warn!("{warning}");
        }
        let remote = wiring::remote(&config, &environment).map_err(anyhow::Error::msg)?;
        Ok(Client::new(remote)?)
    };
    tokio::task::spawn_blocking(make).await?
}
