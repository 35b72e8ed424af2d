//! Ctrl-C and SIGTERM, seen by a thread of its own.

use std::thread;

/// Calls `then` at the first of either signal; a second one ends the process.
pub(super) fn at_interrupt(then: impl FnOnce() + Send + 'static) {
    let watching = || {
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
    // Without it a signal ends the process at once, which is as good as any end.
    let _ = thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || -> Option<()> { watching() });
}
