//! Runs blocking work (such as disk I/O) on threads that may block, not on the async threads.

use crate::error::Error;

/// Runs `work` on a thread that may block. If the caller's future is dropped, `work` still runs to
/// its end.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|_| Error::Internal)
}
