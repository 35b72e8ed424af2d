//! Starts the tasks that drive connections to upstreams, so that the caller can watch these tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hyper::rt::Executor;

/// A task that drives one connection.
pub type ConnectionTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Starts tasks that drive connections. The default starts them on the current runtime, and nobody
/// counts their panics. If such a task panics, the requests on its connection fail.
#[derive(Clone)]
pub struct Spawner(Arc<dyn Fn(ConnectionTask) + Send + Sync>);

impl Spawner {
    /// Creates a spawner that calls `spawn` for each task, in the context of a tokio runtime.
    pub fn new(spawn: impl Fn(ConnectionTask) + Send + Sync + 'static) -> Self {
        Self(Arc::new(spawn))
    }
}

impl Default for Spawner {
    fn default() -> Self {
        Self::new(|task| drop(tokio::spawn(task)))
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spawner")
    }
}

impl<F> Executor<F> for Spawner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        (self.0)(Box::pin(task));
    }
}
