//! A fake registry for tests that are not asynchronous themselves.

use std::ops::Deref;

use tokio::runtime::{Builder as Runtimes, Runtime};

use super::{Builder, FakeRegistry};

/// A [`FakeRegistry`] with threads of its own.
pub struct Background {
    /// Before the runtime, so that it is dropped while there still is one.
    registry: FakeRegistry,
    runtime: Runtime,
}

impl Builder {
    /// Starts it on two threads of its own.
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

    /// Any other of its asynchronous operations, blocking:
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
