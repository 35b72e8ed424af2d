//! Small documents of an upstream: manifests, tag lists, referrers lists; fresh, revalidated or stale.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pierhead_cache::{Error as CacheError, StoredBlob, TagKey, TagRecord};
use pierhead_oci::{Digest, Manifest, Reference, Registry, Repository, Target};
use pierhead_remote::{DocumentResponse, Fault, Validators};
use tokio::time::Instant;

use crate::context::Inner;
use crate::deadline::Deadline;
use crate::error::{Error, is_passed_on, with_sources};
use crate::limits::client::Client;
use crate::metrics::Outcome;
use crate::pull::document::{Content, Document, EAGER};
use crate::pull::manifest_type::manifest_media_type;
use crate::pull::negative_cache::{Subject, registry_of};
use crate::refusal_log::Refusal;

/// Documents below this never take room in the client crate.
const TINY: usize = 16 << 10;

/// While the upstream is known to be failing, a client with a stale answer waiting for it waits no
/// longer than this for the upstream to show that it is back.
const GRACE: Duration = Duration::from_millis(500);

/// What is cached under a name.
struct Cached {
    document: Document,
    etag: Option<String>,
    /// Seconds since 1970; `None` = for good: a digest names one content for ever.
    validated: Option<u64>,
}

impl Cached {
    fn is_fresh(&self, freshness: Duration) -> bool {
        // A clock that was put back makes it stale, not fresh for years.
        self.validated.is_none_or(|at| {
            now()
                .checked_sub(at)
                .is_some_and(|age| age < freshness.as_secs())
        })
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The document of that name: while fresh from the cache without a word to the upstream, else
/// revalidated, by one request however many ask; stale when the upstream is in trouble or slow.
/// Cancel safe: a revalidation that was started goes on.
pub(crate) async fn resolve(
    inner: &Arc<Inner>,
    client: &Arc<Client>,
    name: &TagKey,
    deadline: Deadline,
) -> Result<(Document, Outcome), Error> {
    let cached = cached(inner, name).await;
    let freshness = inner.config.load().tag_freshness;
    let stale = match cached {
        Some(cached) if cached.is_fresh(freshness) => return Ok((cached.document, Outcome::Hit)),
        other => other.map(|cached| cached.document),
    };
    if let Some(error) = inner.trust.recent.error(&Subject::Name(name.clone())) {
        // Who wants every answer fresh wants a "there is none" fresh too.
        let is_believed = error.fault() == Fault::Upstream || !freshness.is_zero();
        if is_believed {
            return stale_or(inner, name, stale, error.into());
        }
    }
    let registry = registry_of(name);
    let until = match &stale {
        Some(_) if inner.trust.recent.is_failing(registry) => {
            deadline.patience().min(Instant::now() + GRACE)
        }
        Some(_) => deadline.patience(),
        None => deadline.last(),
    };
    let flight = inner.trust.flights.join(name, || {
        let place = inner.limits.queue(client)?;
        let (inner, name) = (inner.clone(), name.clone());
        Ok(async move {
            let _place = place;
            refresh(&inner, &name).await
        })
    });
    let flight = match flight {
        Ok(flight) => flight,
        Err(limit) => return stale_or(inner, name, stale, limit.into()),
    };
    match tokio::time::timeout_at(until, flight.answer()).await {
        Ok(Some(Ok(answer))) => Ok(answer),
        Ok(Some(Err(error))) => stale_or(inner, name, stale, error),
        Ok(None) => stale_or(inner, name, stale, Error::Internal),
        Err(_) => stale_or(inner, name, stale, deadline.slow(registry)),
    }
}

fn stale_or(
    inner: &Inner,
    name: &TagKey,
    stale: Option<Document>,
    error: Error,
) -> Result<(Document, Outcome), Error> {
    match stale {
        Some(document) if error.allows_stale() => {
            let refusal = Refusal {
                event: "stale response served",
                cause: error.cause(),
                client: None,
                registry: Some(registry_of(name)),
            };
            if inner.refusals.is_new(&refusal, name, &error) {
                let (image, digest) = (image_of(name), document.digest);
                tracing::warn!(%image, %digest, %error, "stale response served");
            }
            Ok((document, Outcome::Stale))
        }
        _ => Err(error),
    }
}

fn repository_of(name: &TagKey) -> &Repository {
    match name {
        TagKey::Manifest(reference) => &reference.repository,
        TagKey::Tags(_, repository) | TagKey::Referrers(_, repository, _) => repository,
        _ => unreachable!("every kind of name is listed"),
    }
}

/// The image of a name, for the log.
fn image_of(name: &TagKey) -> String {
    match name {
        TagKey::Manifest(reference) => reference.to_string(),
        _ => format!("{}/{}", registry_of(name), repository_of(name)),
    }
}

/// What the cache has under that name. A failing disk counts as having nothing.
async fn cached(inner: &Inner, name: &TagKey) -> Option<Cached> {
    if let TagKey::Manifest(Reference {
        target: Target::Digest(digest),
        ..
    }) = name
    {
        if !inner.may_share(registry_of(name), digest) {
            return None;
        }
        let object = open(inner, digest).await?;
        // A blob without a type was never served as a manifest: the upstream must say what it is.
        let media_type = object.media_type()?.clone();
        // Lists of tags have one, too.
        if !media_type.is_manifest() && !media_type.is_index() {
            let bytes = object.read_all(Manifest::MAX_SIZE).await.ok()?;
            manifest_media_type(&bytes, media_type.clone()).ok()?;
        }
        let document = Document {
            digest: *digest,
            media_type,
            content: Content::Object(object),
        };
        return Some(Cached {
            document,
            etag: None,
            validated: None,
        });
    }
    let TagRecord {
        digest,
        media_type,
        etag,
        validated,
    } = inner.cache.tags().get(name)?;
    let object = open(inner, &digest).await?;
    // It has a name since it came from there.
    inner.proved(registry_of(name), repository_of(name), &digest);
    let document = Document {
        digest,
        media_type,
        content: Content::Object(object),
    };
    Some(Cached {
        document,
        etag,
        validated: Some(validated),
    })
}

async fn open(inner: &Inner, digest: &Digest) -> Option<StoredBlob> {
    let found = match inner.is_upkeep {
        true => inner.cache.peek(digest).await,
        false => inner.cache.get(digest).await,
    };
    match found {
        Ok(object) => object,
        Err(error) => {
            tracing::warn!(%digest, %error, "a cached document cannot be opened");
            None
        }
    }
}

/// One exchange with the upstream: the flight that all who ask for `name` share.
async fn refresh(inner: &Inner, name: &TagKey) -> Result<(Document, Outcome), Error> {
    // Whoever looked just before another flight landed finds its answer here.
    let cached = cached(inner, name).await;
    let cached = match cached {
        Some(cached) if cached.is_fresh(inner.config.load().tag_freshness) => {
            return Ok((cached.document, Outcome::Hit));
        }
        other => other,
    };
    let known = cached
        .as_ref()
        .map_or_else(Validators::default, |cached| Validators {
            digest: Some(cached.document.digest),
            etag: cached.etag.clone(),
        });
    let registry = registry_of(name);
    let fetched = match name {
        TagKey::Manifest(reference) => inner.client.manifest(reference, &known).await,
        TagKey::Tags(registry, repository) => inner.client.tags(registry, repository, &known).await,
        TagKey::Referrers(registry, repository, digest) => {
            inner
                .client
                .referrers(registry, repository, digest, &known)
                .await
        }
        _ => unreachable!("every kind of name is listed"),
    };
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(error) => {
            inner
                .trust
                .recent
                .failed(registry, Subject::Name(name.clone()), &error);
            if matches!(error, pierhead_remote::Error::NotFound { .. }) {
                note(inner.cache.tags().remove(name).await);
            }
            return Err(error.into());
        }
    };
    inner.trust.recent.answered(registry);
    match (fetched, cached) {
        (DocumentResponse::NotModified, Some(Cached { document, etag, .. })) => {
            remember(inner, name, &document, etag).await;
            Ok((document, Outcome::Hit))
        }
        (DocumentResponse::NotModified, None) => Err(Error::Document(
            "unchanged, though nothing was known".into(),
        )),
        (
            DocumentResponse::Document {
                bytes,
                media_type,
                digest,
                etag,
            },
            _,
        ) => {
            let media_type = match name {
                TagKey::Manifest(_) => manifest_media_type(&bytes, media_type)?,
                _ => media_type,
            };
            inner.proved(registry, repository_of(name), &digest);
            let document = store(
                inner,
                registry,
                Document {
                    digest,
                    media_type,
                    content: Content::Bytes(bytes),
                },
            )
            .await;
            remember(inner, name, &document, etag).await;
            Ok((document, Outcome::Miss))
        }
    }
}

/// Puts it into the cache; what the disk does not take is served from memory all the same.
async fn store(inner: &Inner, registry: &Registry, document: Document) -> Document {
    let Content::Bytes(bytes) = &document.content else {
        return document;
    };
    let bytes = bytes.clone();
    let is_small = u64::try_from(bytes.len()).is_ok_and(|size| size <= EAGER);
    let cost = inner.costs.estimate(registry, document.size());
    // While another registry fills this very digest nothing of ours waits for it.
    let stored = match inner.leads.enter(&document.digest, registry) {
        Some(_lead) => Some(
            inner
                .cache
                .put_costing(
                    &document.digest,
                    &document.media_type,
                    bytes.clone(),
                    Some(cost),
                )
                .await,
        ),
        None => None,
    };
    let content = match stored {
        // Clients that take their time hold a file open, not megabytes.
        Some(Ok(object)) if !is_small => Content::Object(object),
        stored => {
            if let Some(failed) = stored {
                note(failed);
            }
            // A copy, as what the client crate handed over may take of its room until it is dropped,
            // and clients are slow.
            Content::Bytes(match bytes.len() {
                0..TINY => bytes,
                _ => Bytes::copy_from_slice(&bytes),
            })
        }
    };
    Document {
        content,
        ..document
    }
}

async fn remember(inner: &Inner, name: &TagKey, document: &Document, etag: Option<String>) {
    if matches!(
        name,
        TagKey::Manifest(Reference {
            target: Target::Digest(_),
            ..
        })
    ) {
        return;
    }
    let record = TagRecord {
        digest: document.digest,
        media_type: document.media_type.clone(),
        etag,
        validated: now(),
    };
    note(inner.cache.tags().put(name, record).await);
}

fn note<T>(stored: Result<T, CacheError>) {
    match stored {
        Ok(_) => {}
        // Once the bytes of a day are spent that is every document until the next.
        Err(error) if is_passed_on(&error) => tracing::debug!(%error, "a document is passed on"),
        Err(error) => {
            tracing::warn!(error = %with_sources(&error), "a document was not stored");
        }
    }
}
