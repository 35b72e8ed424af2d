//! Reduces repeated log lines about refusals and failures: one line for the first occurrence, and
//! one line with the number of repetitions at the end of a time window.
//!
//! 1. The table has at most [`MAX_ENTRIES`] entries plus one per kind of refusal, regardless of
//!    what clients send.
//! 2. The first repetition of an entry starts a task, which writes the number of repetitions once.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hash};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pierhead_host::{BackgroundTask, ClientKey, Panics};
use pierhead_oci::Registry;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::error::Cause;

/// The time window of a log entry, in which repetitions are only counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of different refusals in the log window, of about 400 bytes each.
const MAX_ENTRIES: usize = 1024;
/// Maximum number of images that get a log line of their own, per time window, kind of refusal,
/// client and registry.
const MAX_LOGGED_IMAGES: usize = 8;
/// Maximum bytes of an error's text in the log line with the number of repetitions.
const MAX_ERROR_BYTES: usize = 256;

/// Decides which refusals are logged. Clones share one table. Each use takes a lock, so it is used
/// only for refusals and failures.
#[derive(Clone)]
pub(crate) struct RefusalLog(Arc<RefusalTable>);

/// The table of recent refusals. A general-purpose cache cannot replace this table, because the
/// counts of its entries must not get lost.
struct RefusalTable {
    hashes: RandomState,
    entries: Mutex<HashMap<Key, Entry>>,
    panics: Panics,
}

/// A refusal or failure to log.
pub(crate) struct Refusal<'a> {
    /// The message of the log line, such as `pull refused`.
    pub(crate) event: &'static str,
    pub(crate) cause: Cause,
    /// The client. `None`: the refusal concerns the registry and not a client.
    pub(crate) client: Option<IpAddr>,
    pub(crate) registry: Option<&'a Registry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    event: &'static str,
    cause: Cause,
    client: Option<ClientKey>,
    registry: Option<Registry>,
}

struct Entry {
    until: Instant,
    /// Keyed hashes of the images that have a log line in this window.
    images: Vec<u64>,
    repeats: u64,
    client: Option<IpAddr>,
    error: String,
}

impl RefusalLog {
    /// Creates an empty table. `panics` counts panics of the tasks that log repetitions.
    pub(crate) fn new(panics: Panics) -> Self {
        Self(Arc::new(RefusalTable {
            hashes: RandomState::new(),
            entries: Mutex::default(),
            panics,
        }))
    }

    /// Whether to log this refusal now. A refusal that is not logged is counted for the line at the
    /// end of the window.
    pub(crate) fn is_new(
        &self,
        refusal: &Refusal<'_>,
        image: impl Hash,
        error: &impl ToString,
    ) -> bool {
        let now = Instant::now();
        let image = self.0.hashes.hash_one(image);
        let mut key = Key {
            event: refusal.event,
            cause: refusal.cause,
            client: refusal.client.map(ClientKey::of),
            registry: refusal.registry.cloned(),
        };
        let mut entries = self.lock();
        if entries.len() >= MAX_ENTRIES && !entries.contains_key(&key) {
            entries.retain(|_, entry| entry.until > now || entry.repeats > 0);
            if entries.len() >= MAX_ENTRIES {
                (key.client, key.registry) = (None, None);
            }
        }
        let is_over = |entry: &Entry| entry.until <= now && entry.repeats == 0;
        match entries.get_mut(&key) {
            Some(entry) if !is_over(entry) => {
                let is_known = entry.images.contains(&image);
                if !is_known && entry.images.len() < MAX_LOGGED_IMAGES {
                    entry.images.push(image);
                    return true;
                }
                entry.repeats += 1;
                if entry.repeats == 1 {
                    self.count_later(key.clone(), entry.until);
                }
                false
            }
            _ => {
                let entry = Entry {
                    until: now + WINDOW,
                    images: vec![image],
                    repeats: 0,
                    client: key.client.and(refusal.client),
                    error: bounded(error.to_string()),
                };
                entries.insert(key, entry);
                true
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.0.entries.lock()
    }

    fn count_later(&self, key: Key, until: Instant) {
        // The runtime is shutting down, so the number of repetitions is not logged.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (log, panics) = (self.clone(), &self.0.panics);
        panics.spawn_on(&runtime, BackgroundTask::RefusalLog, async move {
            tokio::time::sleep_until(until).await;
            let Some(entry) = log.lock().remove(&key) else {
                return;
            };
            let registry = key.registry.as_ref().map(tracing::field::display);
            let client = entry.client.map(tracing::field::display);
            let (repeats, seconds, error) = (entry.repeats, WINDOW.as_secs(), entry.error);
            tracing::info!(registry, client, %error, repeats, seconds, "{}, repeatedly", key.event);
        });
    }
}

fn bounded(mut text: String) -> String {
    if text.len() > MAX_ERROR_BYTES {
        text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use pierhead_testkit::log::capture;

    use super::*;
    use crate::error::Error;

    fn registry(nth: usize) -> Registry {
        format!("registry-{nth}.example").parse().unwrap()
    }

    fn client(nth: u8) -> Option<IpAddr> {
        Some(Ipv4Addr::new(10, 0, 0, nth).into())
    }

    fn refusal(client: Option<IpAddr>, registry: &Registry) -> Refusal<'_> {
        Refusal {
            event: "pull refused",
            cause: Error::Timeout.cause(),
            client,
            registry: Some(registry),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repeats_are_one_line_and_a_count_when_the_window_ends() {
        let lines = capture();
        let log = RefusalLog::new(Panics::default());
        let one = registry(1);
        let again = || log.is_new(&refusal(client(1), &one), "app:1", &Error::Timeout);
        assert!(again());
        for _ in 0..41 {
            assert!(!again());
        }
        assert!(log.is_new(&refusal(client(2), &one), "app:1", &Error::Timeout));
        assert!(log.is_new(&refusal(client(1), &registry(2)), "app:1", &Error::Timeout));
        let internal = Refusal {
            cause: Error::Internal.cause(),
            ..refusal(client(1), &one)
        };
        assert!(log.is_new(&internal, "app:1", &Error::Internal));
        assert_eq!(lines.text(), "", "the window has not ended");
        tokio::time::sleep(WINDOW + Duration::from_millis(1)).await;
        let text = lines.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in [
            "pull refused, repeatedly",
            "registry=registry-1.example",
            "client=10.0.0.1",
            "repeats=41",
            "seconds=60",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(again(), "the next window");
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_images_are_logged_and_the_others_are_counted() {
        let log = RefusalLog::new(Panics::default());
        let one = registry(1);
        let named = (0..1000)
            .filter(|image| log.is_new(&refusal(client(1), &one), image, &Error::Timeout))
            .count();
        assert_eq!(named, MAX_LOGGED_IMAGES);
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_and_its_lines_are_bounded() {
        let log = RefusalLog::new(Panics::default());
        let long = "x".repeat(4 * MAX_ERROR_BYTES);
        let mut lines = 0;
        for nth in 0..3 * MAX_ENTRIES {
            let of = registry(nth);
            lines += usize::from(log.is_new(&refusal(client(1), &of), nth, &long));
            assert!(log.lock().len() <= MAX_ENTRIES + 1);
        }
        assert_eq!(lines, MAX_ENTRIES + MAX_LOGGED_IMAGES);
        assert!(
            log.lock()
                .values()
                .all(|it| it.error.len() <= MAX_ERROR_BYTES + 3)
        );
        tokio::time::sleep(WINDOW + Duration::from_millis(1)).await;
        assert!(log.is_new(&refusal(client(2), &registry(0)), 0, &long));
        assert_eq!(log.lock().len(), 1, "expired entries make room");
    }
}
