//! Negative cache: remembers recent upstream errors, blobs that the disk refused, and upstreams
//! that fail.
//!
//! The cache has a maximum size, and its entries are short-lived. A lost entry costs one more
//! upstream request.

use std::time::{Duration, Instant};

use moka::Expiry;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use pierhead_cache::TagKey;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{Error, Fault};

use crate::ttl_cache::ttl_cache;

/// How long "not found" and "denied" of an upstream are served from the negative cache. This slows
/// down a client that repeats a request in a loop. A user who has just pushed an image hardly
/// notices it.
const REFUSAL_TTL: Duration = Duration::from_secs(5);
/// How long a failure of the upstream is served from the negative cache. A retry may help, so the
/// time is only long enough for a burst of requests.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// How long a blob that the disk refused is streamed without storing it.
const UNSTORABLE_TTL: Duration = Duration::from_secs(10);
/// Maximum number of entries of each table of the negative cache, of about 400 bytes each: at most
/// 2 MB per table.
const MAX_NEGATIVE_ENTRIES: u64 = 4096;

/// The resource that an upstream request is about.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A manifest, a tag list, or a referrers list.
    Name(TagKey),
    /// A blob in one repository. If this repository lacks the blob, another one may have it.
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

/// An error, and how long it is served from this cache.
#[derive(Clone)]
struct CachedError {
    error: Error,
    ttl: Duration,
}

/// The expiry of errors: each error has its own TTL, which begins anew when a later error replaces
/// it.
struct ErrorExpiry;

impl Expiry<Subject, CachedError> for ErrorExpiry {
    fn expire_after_create(
        &self,
        _: &Subject,
        cached: &CachedError,
        _: Instant,
    ) -> Option<Duration> {
        Some(cached.ttl)
    }

    fn expire_after_update(
        &self,
        _: &Subject,
        cached: &CachedError,
        _: Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(cached.ttl)
    }
}

/// Recent failures of upstream requests and of the disk.
pub(crate) struct NegativeCache {
    errors: Cache<Subject, CachedError>,
    mismatches: Cache<Subject, Error>,
    unstorable: Cache<Digest, ()>,
    /// Upstreams whose last exchange failed. An entry does not expire, because only a response
    /// shows that the upstream works.
    failing: Cache<Registry, ()>,
    /// Whether each client has its own rights at upstreams, so that a refusal to one client does
    /// not apply to others.
    is_personal: bool,
}

impl NegativeCache {
    /// Creates the cache. `is_personal` means that upstreams respond by the rights of each client.
    pub(crate) fn new(is_personal: bool) -> Self {
        Self {
            errors: Cache::builder()
                .max_capacity(MAX_NEGATIVE_ENTRIES)
                .eviction_policy(EvictionPolicy::lru())
                .expire_after(ErrorExpiry)
                .build(),
            mismatches: ttl_cache(MAX_NEGATIVE_ENTRIES, FAILURE_TTL),
            unstorable: ttl_cache(MAX_NEGATIVE_ENTRIES, UNSTORABLE_TTL),
            failing: Cache::builder()
                .max_capacity(MAX_NEGATIVE_ENTRIES)
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            is_personal,
        }
    }

    /// Records that an exchange with `registry` about `subject` failed.
    pub(crate) fn record_failure(&self, registry: &Registry, subject: Subject, error: &Error) {
        let is_about_credentials =
            matches!(error, Error::Denied { .. } | Error::RateLimited { .. });
        if is_about_credentials && self.is_personal {
            self.record_response(registry);
            return;
        }
        let ttl = match error.fault() {
            Fault::Upstream => {
                self.failing.insert(registry.clone(), ());
                FAILURE_TTL
            }
            Fault::Request => {
                self.record_response(registry);
                REFUSAL_TTL
            }
            Fault::Policy => REFUSAL_TTL,
        };
        // For an upstream that is down, the upstream client itself decides when to probe it.
        let ttl = match error {
            Error::Down { retry_after, .. } => ttl.min(*retry_after),
            _ => ttl,
        };
        let error = error.clone();
        self.errors.insert(subject, CachedError { error, ttl });
    }

    /// Records that the upstream sent content with another digest. Later responses of the upstream
    /// do not remove this error: containerd requests the rest of an aborted body at once, up to
    /// four times, and falls back to the registry only after an error.
    pub(crate) fn record_mismatch(&self, subject: Subject, error: Error) {
        self.mismatches.insert(subject, error);
    }

    /// Records that the upstream responded, so it no longer counts as failing.
    pub(crate) fn record_response(&self, registry: &Registry) {
        self.failing.invalidate(registry);
    }

    /// Whether the last exchange with this upstream failed by the upstream's own fault.
    pub(crate) fn is_failing(&self, registry: &Registry) -> bool {
        self.failing.contains_key(registry)
    }

    /// Returns the recent error about `subject`. After any response of the upstream, its earlier
    /// failures no longer count, because a client that got a manifest must also get its blobs.
    pub(crate) fn error(&self, subject: &Subject) -> Option<Error> {
        if let Some(error) = self.mismatches.get(subject) {
            return Some(error);
        }
        let CachedError { error, .. } = self.errors.get(subject)?;
        let is_current = error.fault() != Fault::Upstream || self.is_failing(subject.registry());
        is_current.then_some(error)
    }

    /// Records that the disk refused this blob.
    pub(crate) fn record_unstorable(&self, digest: Digest) {
        self.unstorable.insert(digest, ());
    }

    /// Whether the disk refused this blob recently.
    pub(crate) fn is_unstorable(&self, digest: &Digest) -> bool {
        self.unstorable.contains_key(digest)
    }
}

pub(crate) fn registry_of(name: &TagKey) -> &Registry {
    match name {
        TagKey::Manifest(reference) => &reference.registry,
        TagKey::Tags(registry, _) | TagKey::Referrers(registry, _, _) => registry,
        _ => unreachable!("TagKey has no other variant"),
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

    /// The error of an upstream that pierhead's upstream client asks again after that time.
    fn down_for(retry_after: Duration) -> Error {
        Error::Down {
            upstream: "example.com".into(),
            since: Duration::ZERO,
            retry_after,
            what: "refused".into(),
        }
    }

    #[test]
    fn an_upstream_counts_as_failing_until_it_responds() {
        let (negative_cache, registry) =
            (NegativeCache::new(false), "example.com".parse().unwrap());
        let down = Error::Status {
            upstream: "example.com".into(),
            status: 500,
        };
        negative_cache.record_failure(&registry, subject("a"), &down);
        assert!(
            negative_cache.is_failing(&registry) && negative_cache.error(&subject("a")).is_some()
        );
        assert!(negative_cache.error(&subject("b")).is_none());
        negative_cache.record_failure(
            &registry,
            subject("b"),
            &Error::NotFound {
                upstream: "example.com".into(),
            },
        );
        assert!(!negative_cache.is_failing(&registry), "a 404 is a response");
        assert!(
            negative_cache.error(&subject("a")).is_none(),
            "the upstream responds again"
        );
        assert!(matches!(
            negative_cache.error(&subject("b")),
            Some(Error::NotFound { .. })
        ));
        negative_cache.record_mismatch(subject("c"), down);
        negative_cache.record_response(&registry);
        assert!(
            negative_cache.error(&subject("c")).is_some(),
            "a mismatch stays"
        );
    }

    #[test]
    fn a_refusal_to_one_client_does_not_apply_to_others() {
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
            negative_cache.record_failure(&registry, subject("a"), error);
            assert!(negative_cache.error(&subject("a")).is_none(), "{error}");
            assert!(!negative_cache.is_failing(&registry), "{error}");
            let negative_cache = NegativeCache::new(false);
            negative_cache.record_failure(&registry, subject("a"), error);
            assert!(negative_cache.error(&subject("a")).is_some(), "{error}");
        }
    }

    #[test]
    fn errors_expire_and_their_number_is_bounded() {
        let negative_cache = NegativeCache::new(false);
        let registry = "example.com".parse().unwrap();
        let down = down_for(Duration::ZERO);
        negative_cache.record_failure(&registry, subject("a"), &down);
        assert!(negative_cache.error(&subject("a")).is_none());
        let not_found = Error::NotFound {
            upstream: "example.com".into(),
        };
        for nth in 0..3 * MAX_NEGATIVE_ENTRIES {
            negative_cache.record_failure(&registry, subject(&nth.to_string()), &not_found);
        }
        let last = subject(&(3 * MAX_NEGATIVE_ENTRIES - 1).to_string());
        assert!(negative_cache.error(&last).is_some());
        negative_cache.errors.run_pending_tasks();
        assert!(negative_cache.errors.entry_count() <= MAX_NEGATIVE_ENTRIES);
    }

    #[test]
    fn an_error_that_replaces_another_has_its_own_ttl() {
        let (negative_cache, registry) =
            (NegativeCache::new(false), "example.com".parse().unwrap());
        let long = down_for(Duration::from_secs(60));
        negative_cache.record_failure(&registry, subject("a"), &long);
        assert!(negative_cache.error(&subject("a")).is_some());
        negative_cache.record_failure(&registry, subject("a"), &down_for(Duration::ZERO));
        assert!(negative_cache.error(&subject("a")).is_none());
    }
}
