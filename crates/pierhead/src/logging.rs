//! Log lines to standard error, and their level while running.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// Changes the level of a running process.
pub(crate) struct Level(reload::Handle<Targets, Registry>);

impl Level {
    /// Takes effect at once.
    pub(crate) fn set(&self, log: &Log) {
        // It can fail only when the subscriber is gone, and then there is nobody to tell.
        let _ = self.0.reload(targets(&log.level));
    }
}

/// Called once, before anything logs.
pub(crate) fn start(log: &Log) -> Level {
    let (filter, handle) = reload::Layer::new(targets(&log.level));
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    // A second start in one process would be a mistake of the tests, not of the user's.
    let _ = match log.format {
        LogFormat::Text => registry
            .with(
                lines
                    .with_ansi(std::io::stderr().is_terminal())
                    .with_target(false),
            )
            .try_init(),
        LogFormat::Json => registry
            .with(
                lines
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            )
            .try_init(),
    };
    Level(handle)
}

/// The configuration has checked the text. `Targets` rather than `EnvFilter`: it takes the words that people use
/// without a regular-expression engine, which would be a sixth of the program.
fn targets(level: &str) -> Targets {
    level.parse().unwrap_or_default()
}
