//! Gates for unit tests: a thread that opens a plan file waits at the gate of this file until the
//! test opens the gate. Without tests, there are no gates.

#[cfg(not(test))]
pub(super) const fn pass(_: &std::path::Path) {}

#[cfg(test)]
pub(super) use gates::{PlanGate, pass};

#[cfg(test)]
mod gates {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use parking_lot::{Condvar, Mutex};

    /// The closed gates of all tests, by the path of the plan file.
    static CLOSED: Mutex<Vec<Closed>> = Mutex::new(Vec::new());
    static CHANGED: Condvar = Condvar::new();

    struct Closed {
        path: PathBuf,
        /// Whether a thread waits at the gate.
        is_reached: bool,
    }

    /// A closed gate. Dropping this value opens the gate.
    pub(in crate::server) struct PlanGate(PathBuf);

    impl PlanGate {
        pub(in crate::server) fn close(path: PathBuf) -> Self {
            CLOSED.lock().push(Closed {
                path: path.clone(),
                is_reached: false,
            });
            Self(path)
        }

        /// Waits until another thread waits at the gate.
        pub(in crate::server) fn wait_until_reached(&self) {
            let mut closed = CLOSED.lock();
            let is_open = |closed: &mut Vec<Closed>| {
                let mut gates = closed.iter();
                !gates.any(|gate| gate.path == self.0 && gate.is_reached)
            };
            let limit = Duration::from_secs(60);
            let waited = CHANGED.wait_while_for(&mut closed, is_open, limit);
            assert!(!waited.timed_out(), "no thread opens the plan");
        }
    }

    impl Drop for PlanGate {
        fn drop(&mut self) {
            CLOSED.lock().retain(|gate| gate.path != self.0);
            CHANGED.notify_all();
        }
    }

    /// Waits as long as the gate of this plan file is closed.
    pub(in crate::server) fn pass(path: &Path) {
        let mut closed = CLOSED.lock();
        CHANGED.wait_while(&mut closed, |closed| {
            let gate = closed.iter_mut().find(|gate| gate.path == path);
            let is_closed = gate.is_some();
            // Notifies once: if each wake-up notified, two waiting threads would wake each other
            // forever.
            if let Some(gate) = gate
                && !std::mem::replace(&mut gate.is_reached, true)
            {
                CHANGED.notify_all();
            }
            is_closed
        });
    }
}
