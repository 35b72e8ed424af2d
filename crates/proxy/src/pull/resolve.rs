//! Small documents of an upstream: manifests, tag lists, referrers lists; fresh, revalidated or stale.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use pierhead_cache::{Error as CacheError, StoredBlob, TagKey, TagRecord};
use pierhead_oci::{Digest, Manifest, Reference, Registry, Repository, Target};
use pierhead_remote::{DocumentResponse, Fault, Validators};
use tokio::time::Instant;

use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::{Error, is_passed_on, with_sources};
use crate::limits::client_usage::ClientUsage;
use crate::metrics::CacheOutcome;
use crate::pull::document::{Document, DocumentContent, MAX_EAGER};
use crate::pull::manifest_type::manifest_media_type;
use crate::pull::negative_cache::{Subject, registry_of};
use crate::refusal_log::Refusal;

/// Documents below this never take room in the client crate.
const MAX_UNCOPIED: usize = 16 << 10;

/// While the upstream is known to be failing, a client with a stale answer waiting for it waits no
/// longer than this for the upstream to show that it is back.
const FAILING_UPSTREAM_WAIT: Duration = Duration::from_millis(500);

/// What is cached under a name.
struct CachedDocument {
    document: Document,
    etag: Option<String>,
    /// Seconds since 1970; `None` = for good: a digest names one content for ever.
    validated: Option<u64>,
}

impl CachedDocument {
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
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    name: &TagKey,
    deadline: Deadline,
) -> Result<(Document, CacheOutcome), Error> {
    let cached = cached(context, name).await;
    let freshness = context.config.load().tag_freshness;
    let stale = match cached {
        Some(cached) if cached.is_fresh(freshness) => {
            return Ok((cached.document, CacheOutcome::Hit));
        }
        other => other.map(|cached| cached.document),
    };
    if let Some(error) = context
        .generation
        .negative_cache
        .error(&Subject::Name(name.clone()))
    {
        // Who wants every answer fresh wants a "there is none" fresh too.
        let is_believed = error.fault() == Fault::Upstream || !freshness.is_zero();
        if is_believed {
            return stale_or(context, name, stale, error.into());
        }
    }
    let registry = registry_of(name);
    let until = match &stale {
        Some(_) if context.generation.negative_cache.is_failing(registry) => deadline
            .patience()
            .min(Instant::now() + FAILING_UPSTREAM_WAIT),
        Some(_) => deadline.patience(),
        None => deadline.last(),
    };
    let pending = context.generation.document_requests.join(name, || {
        let place = context.limits.queue(client)?;
        let (context, name) = (context.clone(), name.clone());
        Ok(async move {
            let _place = place;
            refresh(&context, &name).await
        })
    });
    let pending = match pending {
        Ok(pending) => pending,
        Err(limit) => return stale_or(context, name, stale, limit.into()),
    };
    match tokio::time::timeout_at(until, pending.answer()).await {
        Ok(Some(Ok(answer))) => Ok(answer),
        Ok(Some(Err(error))) => stale_or(context, name, stale, error),
        Ok(None) => stale_or(context, name, stale, Error::Internal),
        Err(_) => stale_or(context, name, stale, deadline.slow(registry)),
    }
}

fn stale_or(
    context: &RequestContext,
    name: &TagKey,
    stale: Option<Document>,
    error: Error,
) -> Result<(Document, CacheOutcome), Error> {
    match stale {
        Some(document) if error.allows_stale() => {
            let refusal = Refusal {
                event: "stale response served",
                cause: error.cause(),
                client: None,
                registry: Some(registry_of(name)),
            };
            if context.refusals.is_new(&refusal, name, &error) {
                let (image, digest) = (image_of(name), document.digest);
                tracing::warn!(%image, %digest, %error, "stale response served");
            }
            Ok((document, CacheOutcome::Stale))
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
async fn cached(context: &RequestContext, name: &TagKey) -> Option<CachedDocument> {
    if let TagKey::Manifest(Reference {
        target: Target::Digest(digest),
        ..
    }) = name
    {
        if !context.may_share(registry_of(name), digest) {
            return None;
        }
        let blob = open(context, digest).await?;
        // A blob without a type was never served as a manifest: the upstream must say what it is.
        let media_type = blob.media_type()?.clone();
        // Lists of tags have one, too.
        if !media_type.is_manifest() && !media_type.is_index() {
            let bytes = blob.read_all(Manifest::MAX_SIZE).await.ok()?;
            manifest_media_type(&bytes, media_type.clone()).ok()?;
        }
        let document = Document {
            digest: *digest,
            media_type,
            content: DocumentContent::Stored(blob),
        };
        return Some(CachedDocument {
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
    } = context.cache.tags().get(name)?;
    let blob = open(context, &digest).await?;
    // It has a name since it came from there.
    context.record_origin(registry_of(name), repository_of(name), &digest);
    let document = Document {
        digest,
        media_type,
        content: DocumentContent::Stored(blob),
    };
    Some(CachedDocument {
        document,
        etag,
        validated: Some(validated),
    })
}

async fn open(context: &RequestContext, digest: &Digest) -> Option<StoredBlob> {
    let found = match context.is_operator {
        true => context.cache.peek(digest).await,
        false => context.cache.get(digest).await,
    };
    match found {
        Ok(blob) => blob,
        Err(error) => {
            tracing::warn!(%digest, %error, "a cached document cannot be opened");
            None
        }
    }
}

/// One exchange with the upstream: the flight that all who ask for `name` share.
async fn refresh(
    context: &RequestContext,
    name: &TagKey,
) -> Result<(Document, CacheOutcome), Error> {
    // Whoever looked just before another flight landed finds its answer here.
    let cached = cached(context, name).await;
    let cached = match cached {
        Some(cached) if cached.is_fresh(context.config.load().tag_freshness) => {
            return Ok((cached.document, CacheOutcome::Hit));
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
        TagKey::Manifest(reference) => context.client.manifest(reference, &known).await,
        TagKey::Tags(registry, repository) => {
            context.client.tags(registry, repository, &known).await
        }
        TagKey::Referrers(registry, repository, digest) => {
            context
                .client
                .referrers(registry, repository, digest, &known)
                .await
        }
        _ => unreachable!("every kind of name is listed"),
    };
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(error) => {
            context
                .generation
                .negative_cache
                .failed(registry, Subject::Name(name.clone()), &error);
            if matches!(error, pierhead_remote::Error::NotFound { .. }) {
                note(context.cache.tags().remove(name).await);
            }
            return Err(error.into());
        }
    };
    context.generation.negative_cache.answered(registry);
    match (fetched, cached) {
        (DocumentResponse::NotModified, Some(CachedDocument { document, etag, .. })) => {
            remember(context, name, &document, etag).await;
            Ok((document, CacheOutcome::Hit))
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
            context.record_origin(registry, repository_of(name), &digest);
            let document = store(
                context,
                registry,
                Document {
                    digest,
                    media_type,
                    content: DocumentContent::Bytes(bytes),
                },
            )
            .await;
            remember(context, name, &document, etag).await;
            Ok((document, CacheOutcome::Miss))
        }
    }
}

/// Puts it into the cache; what the disk does not take is served from memory all the same.
async fn store(context: &RequestContext, registry: &Registry, document: Document) -> Document {
    let DocumentContent::Bytes(bytes) = &document.content else {
        return document;
    };
    let bytes = bytes.clone();
    let is_small = u64::try_from(bytes.len()).is_ok_and(|size| size <= MAX_EAGER);
    let cost = context.costs.estimate(registry, document.size());
    // While another registry fills this very digest nothing of ours waits for it.
    let stored = match context.fill_owners.enter(&document.digest, registry) {
        Some(_owner) => Some(
            context
                .cache
                .put_with_cost(
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
        Some(Ok(blob)) if !is_small => DocumentContent::Stored(blob),
        stored => {
            if let Some(failed) = stored {
                note(failed);
            }
            // A copy, as what the client crate handed over may take of its room until it is dropped,
            // and clients are slow.
            DocumentContent::Bytes(match bytes.len() {
                0..MAX_UNCOPIED => bytes,
                _ => Bytes::copy_from_slice(&bytes),
            })
        }
    };
    Document {
        content,
        ..document
    }
}

async fn remember(
    context: &RequestContext,
    name: &TagKey,
    document: &Document,
    etag: Option<String>,
) {
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
    note(context.cache.tags().put(name, record).await);
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
