//! Ctrl-C and SIGTERM, handled by a thread of its own.

use std::thread;

/// Calls `then` at the first of either signal. A second signal ends the process with 130.
pub(super) fn at_interrupt(then: impl FnOnce() + Send + 'static) {
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
            then();
            wait().await;
            std::process::exit(130)
        })
    };
    // Without the thread, a signal ends the process at once. That is safe at any time.
    let _ = thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || -> Option<()> { watch() });
}
