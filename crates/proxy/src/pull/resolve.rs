//! Finds the document (manifest, tag list or referrers list) for a name: a fresh document from the
//! cache, a document that the upstream has just confirmed or sent, or a stale document.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pierhead_cache::{Error as CacheError, Origin, StoredBlob, TagKey, TagRecord};
use pierhead_oci::{Digest, Manifest, Reference, Repository, Target};
use pierhead_remote::{DocumentResponse, Fault, Validators};
use tokio::time::Instant;

use crate::clock;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::{Error, is_not_admitted, with_sources};
use crate::limits::client_usage::ClientUsage;
use crate::metrics::CacheOutcome;
use crate::pull::document::{Document, DocumentContent, MAX_EAGER};
use crate::pull::manifest_type::manifest_media_type;
use crate::pull::negative_cache::{Subject, registry_of};
use crate::refusal_log::Refusal;

/// Minimum bytes of a document whose bytes are copied. Smaller documents are not copied, because
/// the registry client reserves no memory for them.
const MIN_COPIED: usize = 16 << 10;

/// Maximum time that a request waits for a failing upstream if there is a stale response.
const FAILING_UPSTREAM_WAIT: Duration = Duration::from_millis(500);

/// The document that the cache has for a name (tag or digest).
struct CachedDocument {
    document: Document,
    etag: Option<String>,
    /// Time of the last confirmation by the upstream, in seconds since 1970. `None`: the document
    /// is always fresh, because its name is a digest.
    validated: Option<u64>,
}

impl CachedDocument {
    fn is_fresh(&self, ttl: Duration) -> bool {
        // If the clock was set back, the document counts as stale, not as fresh for years.
        self.validated
            .is_none_or(|at| now().checked_sub(at).is_some_and(|age| age < ttl.as_secs()))
    }
}

fn now() -> u64 {
    clock::seconds_since_epoch(clock::now())
}

/// Returns the document of that name. A fresh document comes from the cache without an upstream
/// request. For a stale document, all concurrent requests share one revalidation by the upstream.
/// If the upstream fails or is slow, the stale document is returned. Cancel safe: a revalidation in
/// progress continues.
pub(crate) async fn resolve(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    name: &TagKey,
    deadline: Deadline,
) -> Result<(Document, CacheOutcome), Error> {
    let (document, outcome, error) = resolve_unlogged(context, client, name, deadline).await?;
    if let Some(error) = error {
        log_stale(context, name, &document, &error);
    }
    Ok((document, outcome))
}

/// A document, where it comes from, and for a stale document the error that prevented a fresh one.
type Resolved = (Document, CacheOutcome, Option<Error>);

/// Like [`resolve`], but does not log a stale document: the caller may still refuse it.
pub(crate) async fn resolve_unlogged(
    context: &Arc<RequestContext>,
    client: &Arc<ClientUsage>,
    name: &TagKey,
    deadline: Deadline,
) -> Result<Resolved, Error> {
    let cached = cached(context, name).await;
    let ttl = context.config().tags_ttl;
    let stale = match cached {
        Some(cached) if cached.is_fresh(ttl) => {
            return Ok((cached.document, CacheOutcome::Hit, None));
        }
        other => other.map(|cached| cached.document),
    };
    if let Some(error) = context
        .generation
        .negative_cache
        .error(&Subject::Name(name.clone()))
    {
        // If `tags.ttl` is 0, "not found" also comes from the upstream each time.
        let is_current = error.fault() == Fault::Upstream || !ttl.is_zero();
        if is_current {
            return stale_or(context, name, stale, error.into());
        }
    }
    let registry = registry_of(name);
    let until = match &stale {
        Some(_) if context.generation.negative_cache.is_failing(registry) => deadline
            .wait_with_stale()
            .min(Instant::now() + FAILING_UPSTREAM_WAIT),
        Some(_) => deadline.wait_with_stale(),
        None => deadline.wait_without_stale(),
    };
    let pending =
        context
            .generation
            .document_requests
            .join((name, context.holder(client, registry)), || {
                let permit = context.limits.upstream_permit(client)?;
                let (context, name) = (context.clone(), name.clone());
                Ok(async move {
                    let _permit = permit;
                    refresh(&context, &name).await
                })
            });
    let pending = match pending {
        Ok(pending) => pending,
        Err(limit) => return stale_or(context, name, stale, limit.into()),
    };
    match tokio::time::timeout_at(until, pending.result()).await {
        Ok(Ok(Ok((document, outcome)))) => Ok((document, outcome, None)),
        Ok(Ok(Err(error)) | Err(error)) => stale_or(context, name, stale, error),
        Err(_) => stale_or(context, name, stale, deadline.upstream_timeout(registry)),
    }
}

fn stale_or(
    context: &RequestContext,
    name: &TagKey,
    stale: Option<Document>,
    error: Error,
) -> Result<Resolved, Error> {
    match stale {
        Some(document) if error.allows_stale() || is_retained(context, name, &error) => {
            Ok((document, CacheOutcome::Stale, Some(error)))
        }
        _ => Err(error),
    }
}

/// Logs that a client gets a stale document, and the error that prevented a fresh one.
pub(crate) fn log_stale(
    context: &RequestContext,
    name: &TagKey,
    document: &Document,
    error: &Error,
) {
    let refusal = Refusal {
        event: "stale response served",
        cause: error.cause(),
        client: None,
        registry: Some(registry_of(name)),
    };
    if context.refusals.is_new(&refusal, name, error) {
        let (image, digest) = (image_of(name), document.digest);
        tracing::warn!(%image, %digest, %error, "stale response served");
    }
}

/// Whether the last manifest of a tag stays available after the upstream deleted the tag.
fn is_retained(context: &RequestContext, name: &TagKey, error: &Error) -> bool {
    let TagKey::Manifest(reference) = name else {
        return false;
    };
    matches!(
        error,
        Error::Upstream(pierhead_remote::Error::NotFound { .. })
    ) && matches!(reference.target, Target::Tag(_))
        && context.keeps_deleted(&reference.registry)
}

fn repository_of(name: &TagKey) -> &Repository {
    match name {
        TagKey::Manifest(reference) => &reference.repository,
        TagKey::Tags(_, repository) | TagKey::Referrers(_, repository, _) => repository,
        _ => unreachable!("TagKey has no other variant"),
    }
}

/// Formats the image that a name denotes, for the log.
fn image_of(name: &TagKey) -> String {
    match name {
        TagKey::Manifest(reference) => reference.to_string(),
        _ => format!("{}/{}", registry_of(name), repository_of(name)),
    }
}

/// Returns the cached document of that name. `None` also if the disk fails.
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
        // A blob without a recorded media type was never served as a manifest, so its type must
        // come from the upstream.
        let media_type = blob.media_type()?.clone();
        // The type is checked, because stored tag lists have a media type, too.
        if !media_type.is_manifest() && !media_type.is_index() {
            let bytes = blob.read_all(Manifest::MAX_SIZE).await.ok()?;
            manifest_media_type(&bytes, media_type.clone()).ok()?;
        }
        let document = Document {
            digest: *digest,
            media_type,
            warnings: Arc::default(),
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
        warnings,
        validated,
    } = context.cache.tags().get(name)?;
    let blob = open(context, &digest).await?;
    // The origin is recorded correctly, because the document got this name from this registry.
    context.record_origin(registry_of(name), repository_of(name), &digest);
    let document = Document {
        digest,
        media_type,
        warnings: warnings.into(),
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
            tracing::warn!(%digest, %error, "cannot open a cached document");
            None
        }
    }
}

/// Revalidates a document by one upstream request, which all concurrent requests for `name` share.
async fn refresh(
    context: &RequestContext,
    name: &TagKey,
) -> Result<(Document, CacheOutcome), Error> {
    // Another shared request may have ended since the caller looked into the cache, so `refresh`
    // looks into the cache again.
    let cached = cached(context, name).await;
    let cached = match cached {
        Some(cached) if cached.is_fresh(context.config().tags_ttl) => {
            return Ok((cached.document, CacheOutcome::Hit));
        }
        other => other,
    };
    let validators = cached
        .as_ref()
        .map_or_else(Validators::default, |cached| Validators {
            digest: Some(cached.document.digest),
            etag: cached.etag.clone(),
        });
    let registry = registry_of(name);
    let fetched = match name {
        TagKey::Manifest(reference) => context.client.manifest(reference, &validators).await,
        TagKey::Tags(registry, repository) => {
            context.client.tags(registry, repository, &validators).await
        }
        TagKey::Referrers(registry, repository, digest) => {
            context
                .client
                .referrers(registry, repository, digest, &validators)
                .await
        }
        _ => unreachable!("TagKey has no other variant"),
    };
    let fetched = match fetched {
        Ok(fetched) => fetched,
        Err(error) => {
            context.generation.negative_cache.record_failure(
                registry,
                Subject::Name(name.clone()),
                &error,
            );
            let is_not_found = matches!(error, pierhead_remote::Error::NotFound { .. });
            let error = error.into();
            if is_not_found && !is_retained(context, name, &error) {
                let removed = context.cache.tags().remove(name).await;
                log_removal(context, name, removed);
            }
            return Err(error);
        }
    };
    context.generation.negative_cache.record_response(registry);
    // A warning may concern the client whose credentials pierhead used, such as a warning about a
    // quota. So no warning goes to other clients.
    let for_all = |warnings: Vec<String>| match context.client_pass_through().is_some() {
        true => Arc::default(),
        false => warnings.into(),
    };
    match (fetched, cached) {
        (
            DocumentResponse::NotModified { warnings },
            Some(CachedDocument {
                mut document, etag, ..
            }),
        ) => {
            document.warnings = for_all(warnings);
            store_tag(context, name, &document, etag).await;
            Ok((document, CacheOutcome::Hit))
        }
        (DocumentResponse::NotModified { .. }, None) => Err(Error::Document(
            "status 304 without a conditional request".into(),
        )),
        (
            DocumentResponse::Document {
                bytes,
                media_type,
                digest,
                etag,
                warnings,
            },
            _,
        ) => {
            let media_type = match name {
                TagKey::Manifest(_) => manifest_media_type(&bytes, media_type)?,
                _ => media_type,
            };
            let origin = Origin::of(registry).in_repository(repository_of(name));
            let document = store(
                context,
                (name, origin),
                Document {
                    digest,
                    media_type,
                    warnings: for_all(warnings),
                    content: DocumentContent::Bytes(bytes),
                },
            )
            .await;
            // The cache may have had the document from another registry.
            context.record_origin(registry, repository_of(name), &digest);
            store_tag(context, name, &document, etag).await;
            Ok((document, CacheOutcome::Miss))
        }
    }
}

/// Stores the document in the cache. If the disk refuses the document, it stays in memory.
async fn store(
    context: &RequestContext,
    (name, origin): (&TagKey, Origin),
    document: Document,
) -> Document {
    let registry = registry_of(name);
    let DocumentContent::Bytes(bytes) = &document.content else {
        return document;
    };
    let bytes = bytes.clone();
    let is_small = u64::try_from(bytes.len()).is_ok_and(|size| size <= MAX_EAGER);
    let cost = context.costs.estimate(registry, document.size());
    // If another registry fills the same digest, `store` does not wait for that fill.
    let stored = match context.fill_owners.enter(&document.digest, registry) {
        Some(_owner) => Some(
            context
                .cache
                .put_from(
                    origin,
                    &document.digest,
                    &document.media_type,
                    (bytes.clone(), Some(cost)),
                )
                .await,
        ),
        None => None,
    };
    let content = match stored {
        // A stored document is read from its file, so that a slow client holds an open file and not
        // megabytes of memory.
        Some(Ok(blob)) if !is_small => DocumentContent::Stored(blob),
        stored => {
            if let Some(stored) = stored {
                log_failure(context, name, stored);
            }
            // The bytes are copied, because otherwise a slow client would hold the memory
            // reservation of the registry client.
            DocumentContent::Bytes(match bytes.len() {
                0..MIN_COPIED => bytes,
                _ => Bytes::copy_from_slice(&bytes),
            })
        }
    };
    Document {
        content,
        ..document
    }
}

/// Stores which digest the upstream has for that name. If the name itself is a digest, no record is
/// needed.
async fn store_tag(
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
        warnings: document.warnings.to_vec(),
        validated: now(),
    };
    log_failure(context, name, context.cache.tags().put(name, record).await);
}

/// Logs a document or a tag that the cache cannot store: once for each error and registry.
fn log_failure<T>(context: &RequestContext, name: &TagKey, stored: Result<T, CacheError>) {
    match stored {
        Ok(_) => {}
        // A refusal by the admission policy is logged at level debug, because it happens to every
        // document once the daily write budget is spent.
        Err(error) if is_not_admitted(&error) => {
            tracing::debug!(%error, "document served without storing it");
        }
        Err(error) => {
            if let Some(error) = new_failure(context, name, "manifest not stored", error) {
                let image = image_of(name);
                tracing::warn!(%image, error, "manifest not stored; clients get it from the upstream");
            }
        }
    }
}

/// Logs a tag that the upstream no longer has and that the cache cannot remove: once for each error
/// and registry.
fn log_removal(context: &RequestContext, name: &TagKey, removed: Result<(), CacheError>) {
    let event = "tag not removed";
    let error = removed.err();
    if let Some(error) = error.and_then(|error| new_failure(context, name, event, error)) {
        let image = image_of(name);
        tracing::warn!(%image, error, "tag not removed; the cache has it again after a restart");
    }
}

/// Returns the text of an error of the cache if its line is not in the log yet.
fn new_failure(
    context: &RequestContext,
    name: &TagKey,
    event: &'static str,
    error: CacheError,
) -> Option<String> {
    let error = Error::from(error);
    let refusal = Refusal {
        event,
        cause: error.cause(),
        client: None,
        registry: Some(registry_of(name)),
    };
    let error = with_sources(&error);
    let is_new = context.refusals.is_new(&refusal, (), &error);
    is_new.then_some(error)
}
