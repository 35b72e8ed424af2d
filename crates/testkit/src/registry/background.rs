//! Runs a fake registry in background threads, for synchronous tests.

use std::ops::Deref;

use tokio::runtime::{Builder as Runtimes, Runtime};

use super::{Builder, FakeRegistry};

/// A [`FakeRegistry`] in background threads.
pub struct Background {
    /// Declared before the runtime, so that it is dropped first.
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
    /// [`FakeRegistry::stop`], blocking.
    pub fn stop(&self) {
        self.runtime.block_on(self.registry.stop());
    }

    /// [`FakeRegistry::restart`], blocking.
    pub fn restart(&self) {
        self.runtime.block_on(self.registry.restart());
    }

    /// Runs any other asynchronous operation and blocks:
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
