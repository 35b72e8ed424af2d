//! Work that blocks, off the async threads.

use crate::error::Error;

/// Runs `work` off the async threads; goes on to its end when nobody waits any more.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.map_err(|_| Error::Internal)
}
