//! `pierhead serve`: the process around it. [`start`] opens and wires, [`service`] serves until it is told to end, and ends.

mod announce;
mod background_tasks;
mod data;
mod interface;
mod listen;
mod notify;
mod open;
mod reload;
mod servers;
mod service;
mod signals;
mod start;
mod tier_limit;
mod trace;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cli::serve::ServeArgs;
use crate::config::{self, Config};
use crate::environment::Environment;
use crate::exit_code::CommandError;
use crate::logging::{self, Level};
use crate::wiring;
use pierhead_host::machine::{self, Machine};
use signals::Signals;
pub(crate) use tier_limit::TierLimit;
pub(crate) use trace::Trace;

/// Disk reads and writes: as many as a small disk can make use of. Each thread costs its touched
/// stack only, and leaves after ten idle seconds.
const BLOCKING_THREADS: usize = 64;
/// The deepest stack seen is a TLS handshake, far below.
const STACK: usize = 1 << 20;

/// Runs until it is told to stop.
pub(crate) fn run(args: &ServeArgs, environment: Environment) -> Result<(), CommandError> {
    let config = config::load(
        args.config.as_deref(),
        &args.overrides(),
        &environment.default_data,
        &environment.machine,
    )?;
    let level = logging::start(&config.log);
    stay(&config, &environment.machine);
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(wiring::threads(&config, &environment.machine))
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
    let Ok(Some(cores)) = config.limits.cores.resolve(machine) else {
        return;
    };
    match machine::bind_to_cores(&cores) {
        Ok(()) => tracing::info!(cores = machine::format_cpu_list(&cores), "limits.cores"),
        Err(error) => tracing::warn!(
            %error,
            "{}: the system lets it run elsewhere only",
            config.places.of("limits.cores")
        ),
    }
}

async fn serve(
    args: &ServeArgs,
    environment: Environment,
    config: Config,
    level: Level,
) -> anyhow::Result<()> {
    // Before anything takes long, so that a signal during a slow start is not lost.
    let mut signals = Signals::new()?;
    let started = start::start(args, environment, config, level);
    match signals.unless_end(started).await {
        Some(service) => service?.run(args, &mut signals).await,
        None => Ok(()),
    }
}
