//! Runs blocking work (such as disk I/O) on threads that may block, not on the async threads.

use pierhead_host::{BackgroundTask, Panics};

use crate::error::Error;

/// Runs `work` on a thread that may block. If the caller's future is dropped, `work` still runs to
/// its end.
///
/// # Errors
/// [`Error::Internal`] if `work` panics. The panic is logged, and counted as a panic of `task`.
pub(crate) async fn blocking<T: Send + 'static>(
    panics: &Panics,
    task: BackgroundTask,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let panics = panics.clone();
    let done = tokio::task::spawn_blocking(move || panics.catch(task, work)).await;
    done.ok().flatten().ok_or(Error::Internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_the_work_is_an_error_and_is_counted() {
        let panics = Panics::default();
        let done = blocking(&panics, BackgroundTask::HotRanges, || 7).await;
        assert!(matches!(done, Ok(7)), "{done:?}");
        let work = || -> u8 { panic!("by intent") };
        let failed = blocking(&panics, BackgroundTask::HotRanges, work).await;
        assert!(matches!(failed, Err(Error::Internal)), "{failed:?}");
        assert_eq!(panics.counts(), [(BackgroundTask::HotRanges, 1)]);
    }
}
