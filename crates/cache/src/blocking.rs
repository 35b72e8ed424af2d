//! Work that blocks, moved off the async threads.

/// Runs `work` off the async threads. Cancelling the future does not stop the work.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down and drops the caller.
        Err(_) => std::future::pending().await,
    }
}
