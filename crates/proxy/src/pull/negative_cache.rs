//! Negative cache: remembers recent upstream errors, blobs that the disk refused, and upstreams
//! that fail.
//!
//! The negative cache has a maximum size, and its entries expire soon. A lost entry costs one more
//! upstream request.

use std::time::Duration;

use pierhead_cache::TagKey;
use pierhead_oci::{Digest, Registry, Repository};
use pierhead_remote::{Error, Fault};
use pierhead_ttl_cache::TtlCache;

/// How long the errors "not found" and "denied" of an upstream are served from the negative cache.
/// Within this time, a client that repeats a request in a loop causes no upstream requests. A user
/// who has just pushed an image hardly notices the delay.
const REFUSAL_TTL: Duration = Duration::from_secs(5);
/// How long a failure of the upstream is served from the negative cache: only for a burst of
/// requests, because a retry may succeed.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// How long a blob that the disk refused is sent to clients without another attempt to store it.
const UNSTORABLE_TTL: Duration = Duration::from_secs(10);
/// Maximum number of entries of each table of the negative cache, of about 400 bytes each: at most
/// 2 MB per table.
const MAX_NEGATIVE_ENTRIES: usize = 4096;

/// The resource that an upstream request asks for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// A manifest, a tag list, or a referrers list.
    Name(TagKey),
    /// A blob in one repository. If this repository lacks the blob, another repository may have it.
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

/// Recent failures of upstream requests and of the disk.
pub(crate) struct NegativeCache {
    /// Each error has its own TTL, which starts anew if a later error replaces it.
    errors: TtlCache<Subject, Error>,
    mismatches: TtlCache<Subject, Error>,
    unstorable: TtlCache<Digest, ()>,
    /// Upstreams whose last exchange failed. An entry does not expire, because only a response
    /// shows that the upstream works.
    failing: TtlCache<Registry, ()>,
    /// Whether each client has its own rights at upstreams. If so, a refusal to one client does not
    /// apply to other clients.
    is_personal: bool,
}

impl NegativeCache {
    /// Creates an empty negative cache. `is_personal` means that the response of an upstream
    /// depends on the rights of the client.
    pub(crate) fn new(is_personal: bool) -> Self {
        Self {
            errors: TtlCache::new(MAX_NEGATIVE_ENTRIES, None),
            mismatches: TtlCache::new(MAX_NEGATIVE_ENTRIES, FAILURE_TTL),
            unstorable: TtlCache::new(MAX_NEGATIVE_ENTRIES, UNSTORABLE_TTL),
            failing: TtlCache::new(MAX_NEGATIVE_ENTRIES, None),
            is_personal,
        }
    }

    /// Records that a request to `registry` for `subject` failed.
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
        // If an upstream is down, the upstream client itself decides when to probe it.
        let ttl = match error {
            Error::Down { retry_after, .. } => ttl.min(*retry_after),
            _ => ttl,
        };
        self.errors.insert_for(subject, error.clone(), ttl);
    }

    /// Records that the upstream sent content with another digest. Later responses of the upstream
    /// do not remove this error: containerd requests the rest of an aborted body at once, up to
    /// four times, and falls back to the registry only after an error.
    pub(crate) fn record_mismatch(&self, subject: Subject, error: Error) {
        self.mismatches.insert(subject, error);
    }

    /// Records that the upstream responded, so it no longer counts as failing.
    pub(crate) fn record_response(&self, registry: &Registry) {
        self.failing.remove(registry);
    }

    /// Whether the last request to this upstream failed by the upstream's own fault.
    pub(crate) fn is_failing(&self, registry: &Registry) -> bool {
        self.failing.contains(registry)
    }

    /// Returns the recent error about `subject`. Once the upstream has responded to any request,
    /// its earlier failures no longer count, because a client that got a manifest must also get its
    /// blobs.
    pub(crate) fn error(&self, subject: &Subject) -> Option<Error> {
        if let Some(error) = self.mismatches.get(subject) {
            return Some(error);
        }
        let error = self.errors.get(subject)?;
        let is_current = error.fault() != Fault::Upstream || self.is_failing(subject.registry());
        is_current.then_some(error)
    }

    /// Records that the disk refused to store this blob.
    pub(crate) fn record_unstorable(&self, digest: Digest) {
        self.unstorable.insert(digest, ());
    }

    /// Whether the disk refused to store this blob recently.
    pub(crate) fn is_unstorable(&self, digest: &Digest) -> bool {
        self.unstorable.contains(digest)
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

    /// In a test, the error of an upstream that is down and that pierhead asks again after
    /// `retry_after`.
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
                has_credentials: false,
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
        assert_eq!(negative_cache.errors.len(), MAX_NEGATIVE_ENTRIES);
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
