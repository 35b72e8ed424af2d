//! Runs blocking work, such as file I/O, on separate threads, so that async threads do not wait for
//! it.

/// Runs `work` on a blocking thread. Cancelling the future does not stop the work.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down and drops the caller.
        Err(_) => std::future::pending().await,
    }
}
