//! Whether the clients of a connection take what is handed to them.
//!
//! The socket shows a client that stops reading, except over HTTP/2: there a stream waits for its
//! window while the socket is idle. So each body also notes whose turn it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The bodies of one connection that wait for their client.
#[derive(Default)]
pub(crate) struct Pace {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    since: HashMap<u64, Instant>,
}

/// Whose turn it is in one body; dropping it ends the matter.
pub(crate) struct Turn {
    pace: Arc<Pace>,
    key: u64,
}

impl Pace {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new body, which does not wait for the client yet.
    pub(crate) fn turn(self: &Arc<Self>) -> Turn {
        let mut waiting = self.lock();
        waiting.next += 1;
        Turn {
            pace: self.clone(),
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

impl Turn {
    /// The client took what was handed over: we are reading on.
    pub(crate) fn ours(&self) {
        self.pace.lock().since.remove(&self.key);
    }

    /// A frame was handed over.
    pub(crate) fn theirs(&self) {
        self.pace.lock().since.insert(self.key, Instant::now());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.ours();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_body_that_waits_for_its_client_stalls() {
        let pace = Arc::new(Pace::default());
        let (one, two) = (pace.turn(), pace.turn());
        assert!(!pace.is_stalled(Duration::ZERO));
        one.theirs();
        two.theirs();
        std::thread::yield_now();
        assert!(pace.is_stalled(Duration::ZERO) && !pace.is_stalled(Duration::from_secs(60)));
        one.ours();
        drop(two);
        assert!(!pace.is_stalled(Duration::ZERO));
    }
}
