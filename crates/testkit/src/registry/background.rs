//! Runs a fake registry in background threads, for synchronous tests.

use std::ops::Deref;

use tokio::runtime::{Builder as Runtimes, Runtime};

use super::{Builder, FakeRegistry};

/// A [`FakeRegistry`] that runs in background threads.
pub struct Background {
    /// The registry is declared before the runtime, so that it is dropped first.
    registry: FakeRegistry,
    runtime: Runtime,
}

impl Builder {
    /// Starts the registry in two background threads.
    pub fn start_in_background(self) -> Background {
        let runtime = Runtimes::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("threads");
        let registry = runtime.block_on(self.start());
        Background { registry, runtime }
    }
}

impl Background {
    /// Stops the registry, as [`FakeRegistry::stop`] does, and blocks until the registry has
    /// stopped.
    pub fn stop(&self) {
        self.runtime.block_on(self.registry.stop());
    }

    /// Restarts the registry, as [`FakeRegistry::restart`] does, and blocks until the registry
    /// listens again.
    pub fn restart(&self) {
        self.runtime.block_on(self.registry.restart());
    }

    /// Runs any other asynchronous operation of the registry and blocks until it ends:
    /// `registry.wait(async |registry| registry.stop_tokens().await)`.
    pub fn wait<T>(&self, operation: impl AsyncFnOnce(&FakeRegistry) -> T) -> T {
        self.runtime.block_on(operation(&self.registry))
    }
}

impl Deref for Background {
    type Target = FakeRegistry;

    fn deref(&self) -> &FakeRegistry {
        &self.registry
    }
}
