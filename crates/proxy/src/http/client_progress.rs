//! Detects clients that stop reading their responses over HTTP/2.
//!
//! Over HTTP/1.1, the socket shows that a client stops reading. Over HTTP/2, a stream may wait for
//! its flow-control window while the socket is idle. For HTTP/2, each response body therefore
//! records since when it has waited for its client.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// The response bodies of one connection that wait for their client.
#[derive(Default)]
pub(crate) struct ClientProgress {
    waiting: Mutex<WaitingBodies>,
}

#[derive(Default)]
struct WaitingBodies {
    next: u64,
    since: HashMap<u64, Instant>,
}

/// The record of whether one body waits for its client. Dropping this value removes the record.
pub(crate) struct BodyProgress {
    progress: Arc<ClientProgress>,
    key: u64,
}

impl ClientProgress {
    fn lock(&self) -> MutexGuard<'_, WaitingBodies> {
        self.waiting.lock()
    }

    /// Creates the record of a new body, which does not yet wait for the client.
    pub(crate) fn body(self: &Arc<Self>) -> BodyProgress {
        let mut waiting = self.lock();
        waiting.next += 1;
        BodyProgress {
            progress: self.clone(),
            key: waiting.next,
        }
    }

    /// Whether any body has waited for its client longer than `limit`.
    pub(crate) fn is_stalled(&self, limit: Duration) -> bool {
        self.lock()
            .since
            .values()
            .any(|since| since.elapsed() > limit)
    }
}

impl BodyProgress {
    /// Records that the client took the last frame, so the body does not wait.
    pub(crate) fn frame_taken(&self) {
        self.progress.lock().since.remove(&self.key);
    }

    /// Records that the body waits for the client to take a frame.
    pub(crate) fn frame_sent(&self) {
        self.progress.lock().since.insert(self.key, Instant::now());
    }
}

impl Drop for BodyProgress {
    fn drop(&mut self) {
        self.frame_taken();
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
        one.frame_sent();
        two.frame_sent();
        std::thread::yield_now();
        assert!(
            progress.is_stalled(Duration::ZERO) && !progress.is_stalled(Duration::from_secs(60))
        );
        one.frame_taken();
        drop(two);
        assert!(!progress.is_stalled(Duration::ZERO));
    }
}
