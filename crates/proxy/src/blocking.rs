//! Runs blocking work outside of the async threads.

use crate::error::Error;

/// Runs `work` on a thread that may block. The work continues to its end when the caller is cancelled.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|_| Error::Internal)
}
