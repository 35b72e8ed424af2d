//! `pierhead serve`: opens, wires, waits for signals, drains.

mod data;
mod interface;
mod listen;
mod notify;
mod reload;
mod trace;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use pierhead_bundle::library::Library;
use pierhead_cache::Cache;
use pierhead_proxy::Proxy;
use pierhead_remote::Client;
use pierhead_rest::Rest;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{About, Admin, Parts};
use crate::cli::serve::ServeArgs;
use crate::clock;
use crate::config::{self, Config, Size, human_bytes};
use crate::environment::Environment;
use crate::failure::{Exit, Failure, Told};
use crate::logging::{self, Level};
use crate::machine::{self, Machine};
use crate::pressure::{TierLimit, Watch};
use crate::wiring;
use notify::{Notify, State};
use reload::Running;
use trace::Notes;
pub(crate) use trace::Trace;

/// Disk reads and writes, and DNS: as many as a small disk can make use of. Each thread costs its touched
/// stack only, and leaves after ten idle seconds.
const BLOCKING_THREADS: usize = 64;
/// The deepest stack seen is a TLS handshake, far below.
const STACK: usize = 1 << 20;
/// Beyond this, more threads cost memory and bring nothing at the rate of a NIC's uplink.
const MAX_AUTO_THREADS: usize = 16;

/// For the last writes at the end.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs until it is told to stop.
pub(crate) fn run(args: &ServeArgs, environment: Environment) -> Result<(), Failure> {
    let config = config::load(
        args.config.as_deref(),
        &args.overrides(),
        &environment.default_data,
        &environment.machine,
    )?;
    let level = logging::start(&config.log);
    stay(&config, &environment.machine);
    raise_open_files();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = threads(config.limits.threads) {
        runtime.worker_threads(threads);
    }
    let runtime = runtime
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_stack_size(STACK)
        .thread_name("pierhead")
        .enable_all()
        .build()
        .context("cannot start threads")?;
    runtime.block_on(serve(args, environment, config, level))?;
    // What still runs now was given its time to drain.
    runtime.shutdown_background();
    Ok(())
}

/// Up to what we are allowed: the usual soft limit of 1024 open files is for programs that use select(2), and is less
/// than `limits.connections`.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    ) {
        tracing::warn!(%error, soft = limit.current, "cannot raise the limit of open files");
    }
}

/// Before any thread is started: they stay where the first one is.
fn stay(config: &Config, machine: &Machine) {
    if let Some(profile) = config.profile {
        let memory = config.limits.memory.unwrap_or(0);
        tracing::info!(memory, "profile {}", profile.name);
    }
    let Ok(Some(cores)) = config.limits.cores.of(machine) else {
        return;
    };
    match machine::stay_on(&cores) {
        Ok(()) => tracing::info!(cores = machine::list(&cores), "limits.cores"),
        Err(error) => tracing::warn!(%error, "limits.cores: the system lets it run elsewhere only"),
    }
}

fn threads(configured: usize) -> Option<usize> {
    if configured > 0 {
        return Some(configured);
    }
    std::thread::available_parallelism()
        .ok()
        .map(|cores| cores.get().min(MAX_AUTO_THREADS))
}

async fn serve(
    args: &ServeArgs,
    environment: Environment,
    config: Config,
    level: Level,
) -> anyhow::Result<()> {
    // Before anything takes long, so that a signal during a slow start is not lost.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    // A file beyond a limit on its size is an error of that write alone; by default it ends the process.
    drop(signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?);
    let started = Instant::now();

    for warning in wiring::warnings(&config, args.config.as_deref()) {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = interface::management(&config.listen).await {
        tracing::warn!("{warning}");
    }
    // Before the data folder is taken: nobody is kept from it meanwhile.
    let mut wanted = tokio::select! {
        found = interface::addresses(&config.network, &config.listen) => found?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    // A processor, or a build, whose hashes are wrong would store nothing and serve nothing.
    pierhead_engine::check(&pierhead_engine::Cpu)
        .context("the self-check of hashing and decompression failed")?;
    let remote = wiring::remote(&config, &environment).map_err(anyhow::Error::msg)?;
    let client = Client::new(remote)?;
    let notes = Arc::<Notes>::default();
    let rest = Rest::default();
    let cache = open_cache(&config, &notes, &rest).await?;
    check_clock(&cache)?;
    let trace = start_trace(&config, notes).await?;
    let library = open_library(&config, &cache, &rest).await?;
    let (settings, parts) = (wiring::proxy(&config), (cache.clone(), client.clone()));
    let of_proxy = library.clone();
    let proxy = move || Proxy::with_library(parts.0, parts.1, settings, of_proxy);
    let proxy = tokio::task::spawn_blocking(proxy).await?;

    let listeners = listen::bind_all(&wanted)?;
    let listen = listen::addresses(&listeners)?;
    let admin_listener = listen::bind_admin(&config)?;
    let admin_address = admin_listener
        .as_ref()
        .map(TcpListener::local_addr)
        .transpose()?;

    let tier_limit = TierLimit::of(&cache);
    let mut behind = JoinSet::new();
    let following = tier_limit.clone().filter(|_| config.tier.follow_pressure);
    let under = &config.limits.rest_under;
    let watch = Watch::new(rest, under, following, Path::new("/"));
    let pressure = watch.figures();
    behind.spawn(watch.run());
    let of_traces = proxy.clone();
    behind.spawn(async move { of_traces.tell_hot().await });
    let of_stored = proxy.clone();
    behind.spawn(async move { of_stored.offer_stored().await });
    let (stop, stopped) = watch::channel(false);
    let mut servers = JoinSet::new();
    let tls = wiring::tls(&config);
    let serving = {
        let (proxy, stopped) = (proxy.clone(), stopped.clone());
        move |listener| {
            let (proxy, tls, stopped) = (proxy.clone(), tls.clone(), told(stopped.clone()));
            async move { proxy.serve(listener, tls, stopped).await }
        }
    };
    for listener in listeners {
        servers.spawn(serving(listener));
    }
    let mut admin = JoinSet::new();
    if let Some(listener) = admin_listener {
        let state = Admin::new(
            Parts {
                cache: cache.clone(),
                client: client.clone(),
                proxy: proxy.clone(),
                trace: trace.as_ref(),
                library: library.clone(),
                tier_limit: tier_limit.clone(),
                pressure,
            },
            started,
            About {
                listen: &listen,
                tls: config.tls.cert.is_some(),
                data: &config.data,
                config: args.config.as_deref(),
            },
            stopped,
        );
        admin.spawn(Arc::new(state).serve(listener));
    }
    announce(&config, &cache, &listen, admin_address);
    if let Some(path) = &args.ready_file {
        write_ready(path, &listen, admin_address)?;
    }
    tracing::info!("pierhead is ready");
    let notify = Arc::new(Notify::new(&environment.supervisor));
    notify.tell(State::Ready);
    let living = tokio::spawn(Arc::clone(&notify).live());

    let mut running = Running {
        config,
        environment,
        client,
        cache: cache.clone(),
        proxy,
        level,
    };
    let mut follow = tokio::time::interval(interface::FOLLOW);
    follow.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = follow.tick(), if running.config.network.interface.is_some() => {
                let (network, listen) = (&running.config.network, &running.config.listen);
                for address in interface::added(network, listen, &mut wanted).await {
                    match listen::bind(address, true) {
                        Ok(listener) => {
                            servers.spawn(serving(listener));
                            tracing::info!("the interface has one more address: listens on {address}, too");
                        }
                        Err(error) => tracing::warn!("the interface has one more address: {error:#}"),
                    }
                }
            }
            _ = hangup.recv() => running.reload(args).await,
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            Some(ended) = servers.join_next() => {
                ended.context("a listener broke")?.context("a listener failed")?;
                anyhow::bail!("a listener ended by itself");
            }
        }
    }
    // Before it is said, so that whoever reads it can rely on it.
    let _ = stop.send(true);
    notify.tell(State::Stopping);
    tracing::info!(
        "draining: answers under way may take {}; a second signal ends at once",
        humantime::format_duration(running.config.limits.drain)
    );
    // Whatever the answers leave of it is the tier's.
    let end = Instant::now() + running.config.limits.drain.max(CLOSING);
    let at_once = tokio::select! {
        () = async { drained(&mut servers).await; save_tier(&cache, end).await } => false,
        _ = interrupt.recv() => true,
        _ = terminate.recv() => true,
    };
    drop(admin);
    drop(behind);
    if let Some(library) = library {
        let closed = tokio::task::spawn_blocking(move || library.close());
        if tokio::time::timeout(CLOSING, closed).await.is_err() {
            tracing::warn!("work on bundles did not end in time; it goes on at the next start");
        }
    }
    // Also when ending at once: it writes what is pending, and that is little. A disk that hangs must not
    // keep the process, and nothing is lost with it but the order of the last accesses.
    if tokio::time::timeout(CLOSING, cache.close()).await.is_err() {
        tracing::warn!("the disk does not take the last writes; ending without them");
    }
    if let Some(trace) = trace {
        let stopped = tokio::task::spawn_blocking(move || trace.stop());
        let _ = tokio::time::timeout(CLOSING, stopped).await;
    }
    if let Some(path) = &args.ready_file {
        let _ = std::fs::remove_file(path);
    }
    living.abort();
    anyhow::ensure!(!at_once, "ended at once, answers under way were cut");
    tracing::info!("ended");
    Ok(())
}

/// Brings to the disk what a volatile fast tier would forget.
async fn save_tier(cache: &Cache, end: Instant) {
    let left = cache.save_tier(move || Instant::now() >= end).await;
    if left.blobs > 0 {
        tracing::warn!(
            blobs = left.blobs,
            bytes = left.bytes,
            "the disk did not take in time what lies on the volatile fast tier: it will be fetched again when it is asked for"
        );
    }
}

/// Resolves once the process was told to stop.
async fn told(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone: the process is ending.
    let _ = stopped.wait_for(|stop| *stop).await;
}

async fn drained(servers: &mut JoinSet<std::io::Result<()>>) {
    while let Some(ended) = servers.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("while draining: {error}"),
            Err(error) => tracing::warn!("while draining: {error}"),
        }
    }
}

/// A clock that cannot be right is no reason to keep back what is here, and no upstream will give anything by it.
fn check_clock(cache: &Cache) -> Result<(), Told> {
    let Some(what) = clock::wrong(SystemTime::now()) else {
        return Ok(());
    };
    let mend = clock::MEND;
    if cache.stat().blobs == 0 {
        let message = format!("the clock: {what}, and the cache is empty. Set it: {mend}");
        return Err(Told::new(Exit::Clock, message));
    }
    tracing::error!("{what}: what is in the cache is served, and nothing else. Set it: {mend}");
    Ok(())
}

/// Where requests are recorded, if they are to be.
async fn start_trace(config: &Config, notes: Arc<Notes>) -> anyhow::Result<Option<Trace>> {
    let Some(file) = config.trace.file.clone() else {
        return Ok(None);
    };
    let (max_size, data) = (config.trace.max_size, config.data.clone());
    let start = move || Trace::start(notes, &file, max_size, &data);
    tokio::task::spawn_blocking(start).await?.map(Some)
}

/// The library of bundles, unless there are to be none. Without it pulls are served as ever.
async fn open_library(
    config: &Config,
    cache: &Cache,
    rest: &Rest,
) -> anyhow::Result<Option<Library>> {
    if !config.bundle.enabled {
        return Ok(None);
    }
    let space = wiring::space(&config.data)?;
    let (config, blobs, rest) = (config.clone(), Proxy::blobs(cache), rest.clone());
    let open = move || {
        let library = wiring::library(&config, space);
        Library::open(pierhead_bundle::library::Config { rest, ..library }, blobs)
    };
    Ok(match tokio::task::spawn_blocking(open).await? {
        Ok(library) => Some(library),
        Err(error) => {
            tracing::error!(error = %anyhow::Error::new(error), "there are no bundles");
            None
        }
    })
}

async fn open_cache(config: &Config, notes: &Arc<Notes>, rest: &Rest) -> anyhow::Result<Cache> {
    let space = wiring::space(&config.data).map_err(|error| data::unseen(&config.data, error))?;
    // `auto` counts what the cache holds, which is known only once it is open; until then nothing is evicted.
    let provisional = match config.cache.size {
        Size::Auto => space.total,
        size => size.resolve(space.total, 0),
    };
    let mut settings = pierhead_cache::Config::new(&config.data, provisional);
    settings.min_free = config.cache.min_free.resolve(space.total, 0);
    settings.max_blob = config.cache.max_blob;
    settings.memory = config.cache.memory;
    settings.rest = rest.clone();
    settings.recorder = config.trace.file.is_some().then(|| notes.recorder());
    let eviction = wiring::eviction(config, provisional);
    let fast = config.tier.clone();
    let open = move || {
        // A pull is worth more than the time that it takes: without the tier all is served from the disk.
        settings.fast = crate::tier::open(&fast).unwrap_or_else(|error| {
            tracing::error!(%error, "there is no fast tier");
            None
        });
        let disk =
            |settings: &pierhead_cache::Config| crate::tier::disk(&settings.data, fast.disk_model);
        Cache::open_on(settings, eviction, disk)
    };
    let cache = tokio::task::spawn_blocking(open).await?;
    let cache = cache.map_err(|error| data::refused(&config.data, error))?;
    cache.set_capacity(capacity(&cache, config)?).await;
    Ok(cache)
}

/// The bound that `cache.size` means at this moment.
fn capacity(cache: &Cache, config: &Config) -> anyhow::Result<u64> {
    let space = wiring::space(&config.data)?;
    let stat = cache.stat();
    let own = stat.used + stat.reserved + stat.names;
    let capacity = config
        .cache
        .size
        .resolve(space.total, space.free.saturating_add(own));
    let min_free = config.cache.min_free.resolve(space.total, 0);
    if space.free.saturating_add(own) <= min_free {
        tracing::warn!(
            "{} has {} free, and cache.min_free keeps {}: what is in the cache is served, and nothing new stored, until there is room (`df -h`), or less to be kept free",
            config.data.display(),
            human_bytes(space.free),
            human_bytes(min_free)
        );
    }
    Ok(capacity)
}

/// The lines that people look for after a start.
fn announce(config: &Config, cache: &Cache, listen: &[SocketAddr], admin: Option<SocketAddr>) {
    let stat = cache.stat();
    let scheme = if config.tls.cert.is_some() {
        "https"
    } else {
        "http"
    };
    let list: Vec<_> = listen
        .iter()
        .map(|address| format!("{scheme}://{address}"))
        .collect();
    tracing::info!(
        "pierhead {} listens on {}; data in {}, {} of {} used; eviction {}, admission {}; admin {}",
        env!("CARGO_PKG_VERSION"),
        list.join(" "),
        config.data.display(),
        human_bytes(stat.used),
        human_bytes(stat.capacity),
        config.eviction.policy.name(),
        config.eviction.admission.name(),
        admin.map_or_else(|| "off".to_owned(), |address| format!("http://{address}")),
    );
    if let Some(first) = listen.first() {
        let host = if first.ip().is_unspecified() {
            "127.0.0.1".to_owned()
        } else {
            first.ip().to_string()
        };
        let host = if first.is_ipv6() && !first.ip().is_unspecified() {
            format!("[{host}]")
        } else {
            host
        };
        let port = first.port();
        tracing::info!(
            "try `docker pull {host}:{port}/docker.io/library/alpine`; for all of Docker Hub put \
             {{\"registry-mirrors\": [\"{scheme}://{host}:{port}\"]}} into /etc/docker/daemon.json"
        );
    }
}

/// Whole or not at all: whoever waits for the file may read it as soon as it is there.
fn write_ready(
    path: &Path,
    listen: &[SocketAddr],
    admin: Option<SocketAddr>,
) -> anyhow::Result<()> {
    let text = serde_json::json!({ "listen": listen, "admin": admin }).to_string();
    let write = || {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        std::fs::write(&name, text)?;
        std::fs::rename(&name, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
