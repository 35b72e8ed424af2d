//! The daemon (`pierhead serve`): [`start`] opens the cache and the listeners, and [`service`]
//! serves clients until shutdown.

mod background_tasks;
mod bind;
mod client_listeners;
pub(crate) mod clock_check;
mod components;
mod data_folder_error;
mod interface_watch;
pub(crate) mod logging;
mod reload;
pub(crate) mod request_log;
mod service;
mod service_manager;
mod signals;
mod start;
mod start_report;
pub(crate) mod tier;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::logging::Level;
use crate::cli::exit_code::CommandError;
use crate::cli::serve::ServeArgs;
use crate::config::crate_configs;
use crate::config::environment::Environment;
use crate::config::{self, Config};
use pierhead_host::machine::{self, Machine};
use signals::Signals;

/// Maximum number of threads for disk reads and writes: more threads would not make a small disk
/// faster. An idle thread uses only the pages of its stack that it has touched, and ends after ten
/// seconds.
const MAX_BLOCKING_THREADS: usize = 64;
/// Stack size of a thread in bytes. The deepest stack that was measured, in a TLS handshake, is far
/// smaller.
const STACK_BYTES: usize = 1 << 20;

/// Runs the daemon until SIGTERM, SIGINT or an error.
pub(crate) fn run(args: &ServeArgs, environment: Environment) -> Result<(), CommandError> {
    let config = config::load(
        args.config.as_deref(),
        &args.overrides(),
        &environment.default_data,
        &environment.machine,
    )?;
    let level = logging::start(&config.log);
    apply_profile_and_cores(&config, &environment.machine);
    raise_open_files();
    limit_arenas(&environment);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(crate_configs::worker_threads(&config, &environment.machine))
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_stack_size(STACK_BYTES)
        .thread_name("pierhead")
        .enable_all()
        .build()
        .context("cannot start threads")?;
    runtime.block_on(serve(args, environment, config, level))?;
    // The shutdown has already waited for `limits.shutdown_grace`, so it waits for no further
    // thread.
    runtime.shutdown_background();
    Ok(())
}

fn limit_arenas(environment: &Environment) {
    let cores = environment.machine.cores.len();
    if let Some(arenas) = max_arenas(environment.sets_malloc, cores)
        && !pierhead_allocator::limit_arenas(arenas)
    {
        tracing::debug!("this C library has no limit of allocation arenas");
    }
}

/// The maximum number of malloc arenas: 2, or a quarter of the cores, at most 4. After a burst of
/// bundle planning on all threads of two cores, 755 MB stayed resident with the default number of
/// arenas, and 354 MB with two arenas. `None`: an environment variable sets the allocator of glibc,
/// and pierhead keeps that setting.
fn max_arenas(sets_malloc: bool, cores: usize) -> Option<u8> {
    let quarter = u8::try_from(cores / 4).unwrap_or(u8::MAX);
    (!sets_malloc).then(|| quarter.clamp(2, 4))
}

/// Raises the soft limit of open files to the hard limit. The usual soft limit of 1024 exists for
/// programs that use select(2), but pierhead needs more files than that for `limits.connections`.
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

/// Logs the profile, and binds the process to `limits.cores`. The caller calls this function before
/// any other thread starts, since threads inherit the set of CPUs.
fn apply_profile_and_cores(config: &Config, machine: &Machine) {
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
            "{}: the system refuses these cores, so pierhead runs on all that it may use",
            config.key_locations.describe("limits.cores")
        ),
    }
}

async fn serve(
    args: &ServeArgs,
    environment: Environment,
    config: Config,
    level: Level,
) -> anyhow::Result<()> {
    // Installs the signal handlers first, so that a signal during a slow start is not lost.
    let mut signals = Signals::new()?;
    let started = start::start(args, environment, config, level);
    match signals.unless_shutdown(started).await {
        Some(service) => service?.run(args, &mut signals).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_s_setting_of_the_allocator_stays() {
        for (cores, arenas) in [(1, 2), (8, 2), (12, 3), (64, 4), (2000, 4)] {
            assert_eq!(max_arenas(false, cores), Some(arenas), "{cores} cores");
            assert_eq!(max_arenas(true, cores), None, "{cores} cores");
        }
    }
}
