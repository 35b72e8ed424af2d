//! Negative cache: recent upstream errors, blobs that the disk refused, and upstreams that fail.
//!
//! Its memory is bounded and its entries are short-lived. A lost entry costs one more request.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use pierhead_cache::TagKey;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{Error, Fault};

/// How long "there is no such thing" and "you may not" are believed: long enough to take the sting out
/// of a client that asks in a loop, short enough that somebody who just pushed does not notice.
const REFUSAL_TTL: Duration = Duration::from_secs(5);
/// How long a failure of the upstream is believed. A retry may help, so only a burst is spared.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// How long a blob that the disk did not take is streamed past it.
const UNSTORABLE_TTL: Duration = Duration::from_secs(10);
/// Entries a table; at some 300 bytes each about 1 MB in the worst case.
const MAX_ENTRIES: usize = 4096;

/// What an answer was about.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A manifest, a tag list, a referrers list.
    Name(TagKey),
    /// A blob as seen in one repository: another may have it.
    Blob(Registry, Repository, Digest),
}

impl Subject {
    fn registry(&self) -> &Registry {
        match self {
            Self::Name(name) => registry_of(name),
            Self::Blob(registry, ..) => registry,
        }
    }
}

/// See the head of this module.
#[derive(Default)]
pub(crate) struct NegativeCache {
    errors: Mutex<TtlEntries<Subject, Error>>,
    mismatches: Mutex<TtlEntries<Subject, Error>>,
    unstorable: Mutex<TtlEntries<Digest, ()>>,
    failing: Mutex<TtlEntries<Registry, ()>>,
    /// Each client has its own rights at upstreams, so a refusal to one client does not apply to others.
    is_personal: bool,
}

impl NegativeCache {
    /// `is_personal`: upstreams respond by the rights of each client.
    pub(crate) fn new(is_personal: bool) -> Self {
        Self {
            is_personal,
            ..Self::default()
        }
    }

    /// Takes note of how an exchange with `registry` about `subject` failed.
    pub(crate) fn failed(&self, registry: &Registry, subject: Subject, error: &Error) {
        let of_a_login = matches!(error, Error::Denied { .. } | Error::RateLimited { .. });
        if of_a_login && self.is_personal {
            self.answered(registry);
            return;
        }
        let lifetime = match error.fault() {
            Fault::Upstream => {
                // Without an end: only an answer of the upstream shows that it is back.
                lock(&self.failing).insert(registry.clone(), (), Duration::MAX);
                FAILURE_TTL
            }
            Fault::Request => {
                self.answered(registry);
                REFUSAL_TTL
            }
            Fault::Policy => REFUSAL_TTL,
        };
        // The client knows by itself when to ask an upstream again that is down.
        let lifetime = match error {
            Error::Down { retry_after, .. } => lifetime.min(*retry_after),
            _ => lifetime,
        };
        lock(&self.errors).insert(subject, error.clone(), lifetime);
    }

    /// The upstream sent other content than it was asked for. That is believed for a moment whatever
    /// else it answers: containerd comes back at once for the rest of a body that was cut for it, four
    /// times, and falls back only when it is refused.
    pub(crate) fn mismatched(&self, subject: Subject, error: Error) {
        lock(&self.mismatches).insert(subject, error, FAILURE_TTL);
    }

    /// The upstream answered sensibly.
    pub(crate) fn answered(&self, registry: &Registry) {
        lock(&self.failing).entries.remove(registry);
    }

    /// Whether the last exchange with this upstream failed by its own fault.
    pub(crate) fn is_failing(&self, registry: &Registry) -> bool {
        lock(&self.failing).entries.contains_key(registry)
    }

    /// The error that was seen for this a moment ago. A failure of the upstream is forgotten as soon as
    /// the upstream has answered anything: a client that just got a manifest is not refused its blobs.
    pub(crate) fn error(&self, subject: &Subject) -> Option<Error> {
        if let Some(error) = lock(&self.mismatches).get(subject) {
            return Some(error);
        }
        let error = lock(&self.errors).get(subject)?;
        let holds = error.fault() != Fault::Upstream || self.is_failing(subject.registry());
        holds.then_some(error)
    }

    /// The disk did not take this blob.
    pub(crate) fn refused_by_disk(&self, digest: Digest) {
        lock(&self.unstorable).insert(digest, (), UNSTORABLE_TTL);
    }

    /// Whether the disk refused it a moment ago.
    pub(crate) fn is_unstorable(&self, digest: &Digest) -> bool {
        lock(&self.unstorable).get(digest).is_some()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

struct TtlEntries<K, V> {
    /// `None` = for good.
    entries: HashMap<K, (V, Option<Instant>)>,
}

impl<K, V> Default for TtlEntries<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash, V: Clone> TtlEntries<K, V> {
    fn insert(&mut self, key: K, value: V, lifetime: Duration) {
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&key) {
            let now = Instant::now();
            self.entries
                .retain(|_, (_, until)| until.is_some_and(|until| until > now));
            if self.entries.len() >= MAX_ENTRIES {
                self.entries.clear();
            }
        }
        self.entries
            .insert(key, (value, Instant::now().checked_add(lifetime)));
    }

    fn get(&mut self, key: &K) -> Option<V> {
        let (value, until) = self.entries.get(key)?;
        if until.is_none_or(|until| until > Instant::now()) {
            return Some(value.clone());
        }
        self.entries.remove(key);
        None
    }
}

pub(crate) fn registry_of(name: &TagKey) -> &Registry {
    match name {
        TagKey::Manifest(reference) => &reference.registry,
        TagKey::Tags(registry, _) | TagKey::Referrers(registry, _, _) => registry,
        _ => unreachable!("every kind of name is listed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(tag: &str) -> Subject {
        Subject::Name(TagKey::Manifest(
            format!("example.com/a:{tag}").parse().unwrap(),
        ))
    }

    #[test]
    fn an_upstream_fails_until_it_answers() {
        let (negative_cache, registry) = (NegativeCache::default(), "example.com".parse().unwrap());
        let down = Error::Status {
            upstream: "example.com".into(),
            status: 500,
        };
        negative_cache.failed(&registry, subject("a"), &down);
        assert!(
            negative_cache.is_failing(&registry) && negative_cache.error(&subject("a")).is_some()
        );
        assert!(negative_cache.error(&subject("b")).is_none());
        negative_cache.failed(
            &registry,
            subject("b"),
            &Error::NotFound {
                upstream: "example.com".into(),
            },
        );
        assert!(!negative_cache.is_failing(&registry), "a 404 is an answer");
        assert!(negative_cache.error(&subject("a")).is_none(), "it is back");
        assert!(matches!(
            negative_cache.error(&subject("b")),
            Some(Error::NotFound { .. })
        ));
        negative_cache.mismatched(subject("c"), down);
        negative_cache.answered(&registry);
        assert!(
            negative_cache.error(&subject("c")).is_some(),
            "it goes on lying"
        );
    }

    #[test]
    fn what_one_login_is_refused_says_nothing_of_others() {
        let registry = "example.com".parse().unwrap();
        let upstream = || "example.com".to_owned();
        let refusals = [
            Error::Denied {
                upstream: upstream(),
                status: 403,
            },
            Error::RateLimited {
                upstream: upstream(),
                retry_after: Some(Duration::from_secs(3600)),
            },
        ];
        for error in &refusals {
            let negative_cache = NegativeCache::new(true);
            negative_cache.failed(&registry, subject("a"), error);
            assert!(negative_cache.error(&subject("a")).is_none(), "{error}");
            assert!(!negative_cache.is_failing(&registry), "{error}");
            let negative_cache = NegativeCache::new(false);
            negative_cache.failed(&registry, subject("a"), error);
            assert!(negative_cache.error(&subject("a")).is_some(), "{error}");
        }
    }

    #[test]
    fn what_is_remembered_ends_and_is_bounded() {
        let mut table = TtlEntries::default();
        table.insert(0, (), Duration::ZERO);
        assert!(table.get(&0).is_none() && table.entries.is_empty());
        for key in 0..3 * MAX_ENTRIES {
            table.insert(key, (), Duration::MAX);
            assert!(table.entries.len() <= MAX_ENTRIES);
        }
        assert!(table.get(&(3 * MAX_ENTRIES - 1)).is_some());
    }
}
