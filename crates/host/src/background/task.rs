//! The names of pierhead's background tasks, which the log and the metric of panics use.

use std::fmt;

/// Defines the enum of tasks, the name of each task, and the list of all tasks.
macro_rules! tasks {
    ($($(#[$doc:meta])* $task:ident = $name:literal,)*) => {
        /// A task that runs beside the requests of clients. The panics of the task are counted
        /// under its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum BackgroundTask {
            $($(#[$doc])* $task,)*
        }

        impl BackgroundTask {
            /// All tasks, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$task),*];

            /// Returns the name of the task. The name is the value of the metric label `task`, and
            /// the name of the task's thread if the task has its own thread.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$task => $name,)*
                }
            }
        }
    };
}

tasks! {
    /// Serves one connection to the admin API.
    AdminConnection = "admin-connection",
    /// Accepts connections to the admin API.
    AdminListener = "admin-listener",
    /// Prepares the bundle of an image that was just pulled.
    BundleArrival = "bundle-arrival",
    /// Pulls an image for a bundle.
    BundlePull = "bundle-pull",
    /// Indexes images and builds patches for bundles.
    BundleServer = "bundle-server",
    /// Writes a blob into the cache.
    CacheFill = "cache-fill",
    /// Maintains the cache: evicts blobs, and saves catalog and policy state.
    CacheMaintenance = "cache-maintenance",
    /// Verifies all blobs at the request of the operator.
    CacheVerify = "cache-verify",
    /// Pulls images at the request of the operator.
    CacheWarm = "cache-warm",
    /// Accepts the connections of clients.
    ClientListener = "client-listener",
    /// Serves one connection of a client.
    Connection = "connection",
    /// Checks the credentials of a client.
    CredentialCheck = "credential-check",
    /// Fetches a blob on behalf of all clients that wait for it, or waits for a download slot of
    /// that fetch.
    FillOwner = "fill-owner",
    /// Passes the hot ranges of images to the fast tier of the cache.
    HotRanges = "hot-ranges",
    /// Watches the addresses of the network interface on which pierhead listens.
    InterfaceWatch = "interface-watch",
    /// Reads the pressure of the host (how long tasks wait for resources).
    PressureMonitor = "pressure-monitor",
    /// Logs how often a refusal repeated in a time window.
    RefusalLog = "refusal-log",
    /// Writes the request log of the cache.
    RequestLog = "request-log",
    /// Sends keep-alives to the service manager.
    ServiceManager = "service-manager",
    /// Sends a request to a registry that several clients share.
    SharedRequest = "shared-request",
    /// Passes the images in the cache to the bundle server.
    StoredImages = "stored-images",
    /// Writes tags to the disk.
    TagWriter = "tag-writer",
    /// Writes dirty blobs of the fast tier to the disk.
    TierWriteBack = "tier-write-back",
    /// Drives a connection to a registry.
    UpstreamConnection = "upstream-connection",
}

impl fmt::Display for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_label_values_in_order() {
        let names: Vec<_> = BackgroundTask::ALL.iter().map(|task| task.name()).collect();
        assert!(
            names.is_sorted() && BackgroundTask::ALL.is_sorted(),
            "{names:?}"
        );
        for name in &names {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(name.bytes().all(is_plain), "{name}");
            assert_eq!(names.iter().filter(|it| *it == name).count(), 1, "{name}");
        }
    }
}
