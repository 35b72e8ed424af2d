//! Whether the clients of a connection take what is handed to them.
//!
//! The socket shows a client that stops reading, except over HTTP/2: there a stream waits for its
//! window while the socket is idle. So each body also notes whose turn it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// The bodies of one connection that wait for their client.
#[derive(Default)]
pub(crate) struct ClientProgress {
    waiting: Mutex<WaitingBodies>,
}

#[derive(Default)]
struct WaitingBodies {
    next: u64,
    since: HashMap<u64, Instant>,
}

/// Whose turn it is in one body; dropping it ends the matter.
pub(crate) struct BodyProgress {
    progress: Arc<ClientProgress>,
    key: u64,
}

impl ClientProgress {
    fn lock(&self) -> MutexGuard<'_, WaitingBodies> {
        self.waiting.lock()
    }

    /// A new body, which does not wait for the client yet.
    pub(crate) fn body(self: &Arc<Self>) -> BodyProgress {
        let mut waiting = self.lock();
        waiting.next += 1;
        BodyProgress {
            progress: self.clone(),
            key: waiting.next,
        }
    }

    /// Whether some body has waited for its client longer than `limit`.
    pub(crate) fn is_stalled(&self, limit: Duration) -> bool {
        self.lock()
            .since
            .values()
            .any(|since| since.elapsed() > limit)
    }
}

impl BodyProgress {
    /// The client took what was handed over: we are reading on.
    pub(crate) fn client_took_it(&self) {
        self.progress.lock().since.remove(&self.key);
    }

    /// A frame was handed over.
    pub(crate) fn wait_for_client(&self) {
        self.progress.lock().since.insert(self.key, Instant::now());
    }
}

impl Drop for BodyProgress {
    fn drop(&mut self) {
        self.client_took_it();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_body_that_waits_for_its_client_stalls() {
        let progress = Arc::new(ClientProgress::default());
        let (one, two) = (progress.body(), progress.body());
        assert!(!progress.is_stalled(Duration::ZERO));
        one.wait_for_client();
        two.wait_for_client();
        std::thread::yield_now();
        assert!(
            progress.is_stalled(Duration::ZERO) && !progress.is_stalled(Duration::from_secs(60))
        );
        one.client_took_it();
        drop(two);
        assert!(!progress.is_stalled(Duration::ZERO));
    }
}
