//! Handles Ctrl-C and SIGTERM in `pierhead pull`, `inspect` and `diff`, on a separate thread.

use std::thread;

/// Calls `on_interrupt` at the first signal. A second signal ends the process with exit code 130.
pub(super) fn at_interrupt(on_interrupt: impl FnOnce() + Send + 'static) {
    let watch = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        runtime.block_on(async {
            let kind = tokio::signal::unix::SignalKind::terminate();
            let mut terminate = tokio::signal::unix::signal(kind).ok()?;
            let mut wait = async || {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = terminate.recv() => {}
                }
            };
            wait().await;
            on_interrupt();
            wait().await;
            std::process::exit(130)
        })
    };
    // If the thread cannot start, a signal ends the process at once, which is safe at any time.
    let _ = thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || -> Option<()> { watch() });
}
