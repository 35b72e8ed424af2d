//! Runs blocking work, such as file I/O, on separate threads. Thus async threads do not wait for
//! the work.

/// Runs `work` on a blocking thread. If the future is dropped, the work continues.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and drops this future soon.
        Err(_) => std::future::pending().await,
    }
}
