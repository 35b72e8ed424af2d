//! Handles requests of pierhead's bundle extension (bundles, single files, traces): finds the
//! image, checks access, and responds.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, ETAG};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use pierhead_bundle::api::{
    BundleQuery, MEDIA_TYPE, Progress, Share, Stage, Trace, TraceReport, UNKNOWN_BASE_IMAGES,
};
use pierhead_bundle_server::{self as bundle_server, BundleServer, State, Stream};
use pierhead_host::{BackgroundTask, ClientKey};
use pierhead_oci::{
    Body as Document, Digest, Endpoint, Manifest, Name, Platform, Reference, Registry, Repository,
    Target,
};
use pierhead_toc::{Fault, FileDigest};

use crate::access::admit::admit;
use crate::blocking::blocking;
use crate::bundle::image_pull;
use crate::bundle::record_stream::RecordStream;
use crate::bundle::request::BundleRequest;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::body::Body;
use crate::http::peer::Peer;
use crate::http::range::matches_etag;
use crate::http::respond;
use crate::metrics::CacheOutcome;
use crate::pull::document::MAX_EAGER;
use crate::pull::manifest::manifest;
use crate::refusal_log::Refusal;

/// The body of the response to `_oci/ext/discover`: the list of API extensions.
pub(crate) const EXTENSIONS: &str = concat!(
    r#"{"extensions":[{"name":"_pierhead","description":"Delta bundles of unmodified images: only the file contents "#,
    r#"that a worker lacks.","url":"docs/formats/bundle.md","endpoints":["_pierhead/bundle","_pierhead/file","#,
    r#""_pierhead/trace"]}]}"#
);

/// Maximum number of base images of one bundle request for which pass-through checks the client's
/// right. Each check may need an upstream request.
const MAX_CHECKED_BASES: usize = 16;
/// Maximum number of unknown base images in the header of a bundle response. The bundle itself
/// lists the base images that the server knows.
const MAX_NAMED_BASES: usize = 16;

/// The progress that the response reports for work that waits in a queue.
const QUEUED: Progress = Progress {
    stage: Stage::Wait,
    done: 0,
    total: 0,
};

/// Handles one bundle request of a client that may pull the manifest of the image.
pub(crate) struct BundleHandler<'a> {
    pub(crate) context: &'a Arc<RequestContext>,
    pub(crate) peer: &'a Peer,
    pub(crate) parts: &'a Parts,
    pub(crate) name: &'a Name,
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) deadline: Deadline,
}

/// The image of a bundle request, resolved to its digests.
struct ResolvedImage {
    digest: Digest,
    /// The digests of the image's config and layers.
    blobs: Vec<Digest>,
    outcome: CacheOutcome,
}

type HandlerResult = Result<(Response<Body>, CacheOutcome), Error>;

impl BundleHandler<'_> {
    pub(crate) async fn handle(&self, bundle_request: BundleRequest) -> HandlerResult {
        let Some(bundle_server) = &self.context.bundle_server else {
            let failure = self.context.bundle_server_failure.get();
            return Err(failure.map_or(Error::NoBundles, |why| {
                Error::BundlesUnavailable(why.clone())
            }));
        };
        match bundle_request {
            BundleRequest::Other => Err(Error::Internal),
            BundleRequest::Bundle(query, target) => {
                let started = Instant::now();
                let result = self.bundle(bundle_server, &query, target).await;
                self.log(&query, &result, started);
                result
            }
            BundleRequest::File(file, image) => self.file(bundle_server, file, image).await,
            BundleRequest::Trace(trace, target) => self.trace(bundle_server, trace, target).await,
        }
    }

    /// Records the order in which a container start opened the files of the image.
    async fn trace(
        &self,
        bundle_server: &BundleServer,
        trace: Trace,
        target: Target,
    ) -> HandlerResult {
        let image = self.image(target, trace.platform.as_deref()).await?;
        self.ready(bundle_server, &image).await?;
        let client = self.client();
        let (server, entries) = (bundle_server.clone(), trace.files.len());
        // The recording takes a planning slot, because it reads a whole table of contents (TOC)
        // into memory.
        let recorded =
            self.in_planning_slot(move || server.trace(client, &image.digest, &trace.files));
        let recorded = recorded.await?.map_err(bundle_error)?;
        tracing::info!(
            registry = %self.registry,
            repository = %self.repository,
            image = %image.digest,
            client = %self.peer.address,
            entries,
            matched = recorded.matched,
            "trace"
        );
        if recorded.matched == 0 {
            return Err(Error::BadRequest(format!(
                "none of the {entries} entries of this trace is a file of {}",
                image.digest
            )));
        }
        if recorded.is_new {
            let (bundle_server, cache) = (bundle_server.clone(), self.context.cache.clone());
            self.context
                .hot_ranges
                .report(bundle_server, cache, image.digest);
        }
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let report = TraceReport {
            matched: count(recorded.matched),
            clients: count(recorded.clients),
        };
        self.json(&report, CacheOutcome::None)
    }

    /// Responds with the recorded order in which container starts open the files of an image.
    async fn start_order(
        &self,
        bundle_server: &BundleServer,
        image: &ResolvedImage,
    ) -> HandlerResult {
        let (server, digest) = (bundle_server.clone(), image.digest);
        // This work takes a planning slot, because it reads a whole table of contents (TOC) and
        // programs of the image.
        let order = self.in_planning_slot(move || server.start_order(&digest));
        let order = order.await?.map_err(bundle_error)?;
        self.json(&order, image.outcome)
    }

    /// Waits for a planning slot, then runs `work` in the slot. `work` may block. If the client
    /// disconnects during the wait, `work` does not run. Once `work` runs, it keeps the slot to its
    /// end.
    ///
    /// # Errors
    /// [`Error::NotReady`] if the deadline of the request passes before a slot is free. The client
    /// repeats the request after this error.
    async fn in_planning_slot<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let permit = self.context.limits.upstream_permit(&self.peer.client)?;
        let work = async {
            let slot = self.context.plan_slots.acquire(self.client()).await;
            self.blocking(move || {
                let _guards = (slot, permit);
                work()
            })
            .await
        };
        let done = tokio::time::timeout_at(self.deadline.wait_without_stale(), work).await;
        done.unwrap_or(Err(Error::NotReady(QUEUED)))
    }

    /// Runs `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let panics = self.context.cache.panics();
        blocking(panics, BackgroundTask::Connection, work).await
    }

    fn json(&self, document: &impl serde::Serialize, outcome: CacheOutcome) -> HandlerResult {
        let body = serde_json::to_vec(document).map_err(|_| Error::Internal)?;
        let builder = respond::respond(StatusCode::OK, outcome);
        let builder = builder.header(CONTENT_TYPE, HeaderValue::from_static(respond::JSON));
        let body = Body::bytes(body.into());
        Ok((with_length(builder, body, &self.parts.method), outcome))
    }

    async fn bundle(
        &self,
        bundle_server: &BundleServer,
        query: &BundleQuery,
        target: Target,
    ) -> HandlerResult {
        let image = self.image(target, query.platform.as_deref()).await?;
        self.ready(bundle_server, &image).await?;
        if query.start_order {
            return self.start_order(bundle_server, &image).await;
        }
        let mut base_images = Vec::with_capacity(query.base_images.len());
        let mut checked = 0;
        for digest in &query.base_images {
            let is_usable = bundle_server.state(digest) == State::Ready
                && (!self.acts_for_client() || checked < MAX_CHECKED_BASES)
                && self.may_use_base(bundle_server, digest, &mut checked).await;
            let has_layers = query.base_images_with_layers.contains(digest);
            base_images.push(bundle_server::RequestBase {
                manifest: *digest,
                is_usable,
                has_layers,
            });
        }
        let unknown_bases = base_images
            .iter()
            .filter(|base| !base.is_usable)
            .take(MAX_NAMED_BASES)
            .map(|base| base.manifest.to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let planned = self.plan(bundle_server, image.digest, base_images, query);
        let (bundle, is_new) = match planned.await? {
            Err(pierhead_bundle_server::Error::Missing(_)) => {
                // A blob of the image was evicted after the check above. In this case, `ready`
                // starts a new pull of the image, and returns the progress of the pull as an error.
                self.ready(bundle_server, &image).await?;
                return Err(Error::NotReady(QUEUED));
            }
            other => other.map_err(bundle_error)?,
        };
        let etag = bundle.etag().to_owned();
        let part = query.part.as_ref().filter(|it| it.etag == etag);
        let mut builder = respond::respond(StatusCode::OK, image.outcome).header(ETAG, &etag);
        if !unknown_bases.is_empty() {
            builder = builder.header(UNKNOWN_BASE_IMAGES, unknown_bases);
        }
        if part.is_none() && matches_etag(&self.parts.headers, etag.as_bytes()) {
            let builder = builder.status(StatusCode::NOT_MODIFIED);
            return Ok((respond::finish(builder, Body::empty()), image.outcome));
        }
        let range = part.map(|part| (part.first, part.end.unwrap_or(u32::MAX)));
        let share = query.share;
        // A plan that was just made has no other connections yet, which could have received pieces
        // of the bundle.
        let pieces = query.pieces && !is_new;
        // Opening the stream blocks, because it waits for the lock of packs that are being deleted
        // or written.
        let open = move || match share {
            Some(share) => bundle.share(share, pieces),
            None => bundle.stream(range),
        };
        let stream = self.blocking(open).await?;
        let stream = stream.map_err(bundle_error)?;
        let builder = builder.header(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        let body = self.stream(stream, format!("bundle of {}", image.digest));
        Ok((
            with_length(builder, body, &self.parts.method),
            image.outcome,
        ))
    }

    /// Finds the plan of the bundle, which may be a superseded plan whose download the client
    /// resumes. If no plan exists, makes a plan in a planning slot. Returns whether the plan is
    /// new. If several connections request parts of one bundle at once, only the first of these
    /// requests makes a plan.
    async fn plan(
        &self,
        bundle_server: &BundleServer,
        want: Digest,
        base_images: Vec<bundle_server::RequestBase>,
        query: &BundleQuery,
    ) -> Result<Result<(bundle_server::Bundle, bool), pierhead_bundle_server::Error>, Error> {
        let (server, layers) = (bundle_server.clone(), query.layers);
        let etag = query.part.as_ref().map(|part| part.etag.clone());
        let find = move || {
            let ranked = server.rank_bases(&want, &base_images);
            let found = server.planned(&want, &ranked, layers);
            let is_other = |bundle: &Option<bundle_server::Bundle>, etag: &str| {
                bundle.as_ref().is_none_or(|bundle| bundle.etag() != etag)
            };
            let found = match (found, etag) {
                (Ok(found), Some(etag)) if is_other(&found, &etag) => {
                    let superseded = server.superseded(&want, &base_images, layers, &etag);
                    superseded.map(|superseded| superseded.or(found))
                }
                (found, _) => found,
            };
            (ranked, found)
        };
        let (ranked, found) = self.blocking(find).await?;
        if let Some(found) = found.transpose() {
            return Ok(found.map(|found| (found, false)));
        }
        if query.share.is_some_and(|Share(nth, _)| nth > 0) {
            return Err(Error::NotReady(QUEUED));
        }
        let (bundle_server, client) = (bundle_server.clone(), self.client());
        // The plan is completed even if the client disconnects, so that the next request finds it.
        let plan =
            self.in_planning_slot(move || bundle_server.bundle_for(client, &want, &ranked, layers));
        Ok(plan.await?.map(|bundle| (bundle, true)))
    }

    async fn file(
        &self,
        bundle_server: &BundleServer,
        file: FileDigest,
        image: Digest,
    ) -> HandlerResult {
        let image = self.image(Target::Digest(image), None).await?;
        self.ready(bundle_server, &image).await?;
        let server = bundle_server.clone();
        let open = move || server.file(&image.digest, &file);
        let stream = self.blocking(open).await?;
        let stream = stream.map_err(bundle_error)?.ok_or(Error::NoSuchFile)?;
        let etag = format!("\"{file}\"");
        let mut builder = respond::respond(StatusCode::OK, CacheOutcome::Hit)
            .header(ETAG, &etag)
            .header(respond::DOCKER_CONTENT_DIGEST, file.to_string());
        if matches_etag(&self.parts.headers, etag.as_bytes()) {
            builder = builder.status(StatusCode::NOT_MODIFIED);
            return Ok((respond::finish(builder, Body::empty()), CacheOutcome::Hit));
        }
        let builder = builder.header(CONTENT_TYPE, "application/octet-stream");
        let body = self.stream(stream, file.to_string());
        Ok((
            with_length(builder, body, &self.parts.method),
            CacheOutcome::Hit,
        ))
    }

    fn stream(&self, stream: Stream, name: String) -> Body {
        let length = stream.len();
        let panics = self.context.cache.panics().clone();
        let records = RecordStream::new(stream, self.context.encoding.clone(), panics, name);
        Body::records(records, length)
    }

    /// Returns the image of the request. A tag is resolved in the same way as for a pull.
    async fn image(
        &self,
        mut target: Target,
        platform: Option<&str>,
    ) -> Result<ResolvedImage, Error> {
        for _ in 0..=Manifest::MAX_DEPTH {
            let reference = self.reference(target);
            let (document, outcome) =
                manifest(self.context, &self.peer.client, &reference, self.deadline).await?;
            // This permit limits the number of large documents in memory.
            let mut permit = None;
            if document.size() > MAX_EAGER {
                permit = self.context.parsing.acquire().await.ok();
            }
            let bytes = document.bytes(Manifest::MAX_SIZE).await?;
            let parsed = Manifest::parse(bytes, Some(document.media_type.as_str()))?;
            drop(permit);
            let Document::Index { .. } = parsed.body else {
                return Ok(ResolvedImage {
                    digest: document.digest,
                    blobs: parsed.children().map(|child| child.digest).collect(),
                    outcome,
                });
            };
            let platform = platform
                .ok_or_else(|| Error::BadRequest("this is an index: name a platform".into()))?;
            let platform: Platform = platform.parse()?;
            let child = parsed
                .choose(&platform)
                .ok_or_else(|| Error::BadRequest(format!("there is no image for {platform}")))?;
            target = Target::Digest(child.digest);
            self.may_pull(target.clone()).await?;
        }
        Err(Error::Document("indexes in indexes without end".into()))
    }

    fn reference(&self, target: Target) -> Reference {
        Reference {
            registry: self.registry.clone(),
            repository: self.repository.clone(),
            target,
        }
    }

    /// Checks that the client may pull that manifest from this repository.
    async fn may_pull(&self, target: Target) -> Result<(), Error> {
        let name = self.name.clone();
        self.admit(Endpoint::Manifest { name, target }).await
    }

    async fn admit(&self, endpoint: Endpoint) -> Result<(), Error> {
        let admitted = admit(
            self.context,
            self.peer,
            self.parts,
            &endpoint,
            self.deadline,
        )
        .await;
        admitted.map(drop)
    }

    /// The client that the bundle server charges for the work of this request.
    fn client(&self) -> ClientKey {
        ClientKey::of(self.peer.address)
    }

    fn acts_for_client(&self) -> bool {
        self.context.client_pass_through().is_some()
    }

    /// With pass-through, checks that the client may read each blob, and that the blob came from
    /// this registry. The module `access::pass_through` explains why.
    async fn check_blobs(&self, blobs: &[Digest]) -> Result<(), Error> {
        if !self.acts_for_client() {
            return Ok(());
        }
        for digest in blobs {
            if !self.context.may_share(&self.registry, digest) {
                return Err(Error::OriginUnproven);
            }
            let name = self.name.clone();
            let digest = *digest;
            self.admit(Endpoint::Blob { name, digest }).await?;
        }
        Ok(())
    }

    /// Whether the client may use that base image. With pass-through, adds one to the number of
    /// checks in `checked`.
    async fn may_use_base(
        &self,
        bundle_server: &BundleServer,
        digest: &Digest,
        checked: &mut usize,
    ) -> bool {
        if !self.acts_for_client() {
            return true;
        }
        *checked += 1;
        let Some(blobs) = bundle_server.blobs(digest) else {
            return false;
        };
        self.context.may_share(&self.registry, digest)
            && self.may_pull(Target::Digest(*digest)).await.is_ok()
            && self.check_blobs(&blobs).await.is_ok()
    }

    /// Succeeds if the image is indexed. If the image is not indexed, starts the pull or the
    /// indexing of the image, and returns the progress as an error.
    async fn ready(
        &self,
        bundle_server: &BundleServer,
        image: &ResolvedImage,
    ) -> Result<(), Error> {
        match bundle_server.awaited_by(self.client(), &image.digest) {
            State::Ready => return self.check_blobs(&image.blobs).await,
            State::Refused(why) => return Err(Error::NotBundled(why)),
            State::Working(progress) => {
                let failure = bundle_server.failure(&image.digest);
                return Err(failure.map_or(Error::NotReady(progress), Error::Indexing));
            }
            _ => {}
        }
        let cache = &self.context.cache;
        if image.blobs.iter().all(|digest| cache.is_stored(digest)) {
            let offered = bundle_server::Image {
                manifest: image.digest,
                repository: format!("{}/{}", self.registry, self.repository),
            };
            bundle_server.offer_for(self.client(), offered);
            bundle_server.awaited_by(self.client(), &image.digest);
            return Err(Error::NotReady(QUEUED));
        }
        let reference = self.reference(Target::Digest(image.digest));
        let progress = image_pull::progress(self.context, &self.peer.client, &reference)?;
        Err(Error::NotReady(progress))
    }

    /// Logs one line for each bundle request.
    fn log(&self, query: &BundleQuery, result: &HandlerResult, started: Instant) {
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let client = self.peer.address;
        let Self {
            registry,
            repository,
            ..
        } = self;
        let (want, base_images) = (&*query.want, query.base_images.len());
        match result {
            Ok(_) if query.share.is_some_and(|Share(nth, _)| nth > 0) => {
                tracing::debug!(%registry, %repository, want, %client, share = ?query.share, "share of a bundle");
            }
            Ok((response, _)) => {
                let status = response.status().as_u16();
                let bytes = http_body::Body::size_hint(response.body()).exact();
                let etag = response.headers().get(ETAG).and_then(|it| it.to_str().ok());
                tracing::info!(%registry, %repository, want, base_images, %client, status, bytes, etag, duration_ms, "bundle");
            }
            // `NotReady` is logged at level debug, because a client repeats the request every
            // second.
            Err(error @ Error::NotReady(_)) => {
                tracing::debug!(%registry, %repository, want, %client, %error, "bundle not ready");
            }
            Err(error) => {
                let refusal = Refusal {
                    event: "bundle refused",
                    cause: error.cause(),
                    client: Some(client),
                    registry: Some(registry),
                };
                if !self
                    .context
                    .refusals
                    .is_new(&refusal, (repository, want), error)
                {
                    return;
                }
                tracing::info!(%registry, %repository, want, base_images, %client, %error, duration_ms, "bundle refused");
            }
        }
    }
}

fn with_length(
    mut builder: http::response::Builder,
    body: Body,
    method: &Method,
) -> Response<Body> {
    if let Some(length) = http_body::Body::size_hint(&body).exact() {
        builder = builder.header(CONTENT_LENGTH, length);
    }
    let body = match *method == Method::HEAD {
        true => Body::bytes(Bytes::new()),
        false => body,
    };
    respond::finish(builder, body)
}

fn bundle_error(error: pierhead_bundle_server::Error) -> Error {
    match error.fault() {
        Fault::Input => Error::NotBundled(error.to_string()),
        Fault::Host | Fault::Nobody => Error::Bundle(Arc::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use pierhead_cache::Cache;
    use pierhead_oci::Algorithm;

    use super::*;
    use crate::config::Config;
    use crate::limits::client_usage::ClientUsage;
    use crate::limits::limit::Limit;
    use crate::proxy::Proxy;

    #[tokio::test]
    async fn work_waits_for_a_planning_slot_until_the_deadline_of_the_request() {
        let limit = std::time::Duration::from_millis(50);
        let (result, waited) = start_order_without_free_slot(limit, false).await;
        assert!(matches!(result, Err(Error::NotReady(_))), "{result:?}");
        assert!(waited >= limit / 2, "{waited:?}");
    }

    #[tokio::test]
    async fn a_request_for_a_start_order_waits_for_a_planning_slot() {
        let limit = std::time::Duration::from_secs(60);
        let (result, _) = start_order_without_free_slot(limit, true).await;
        assert!(matches!(result, Err(Error::Bundle(_))), "{result:?}");
    }

    /// In a test, requests the start order of an unknown image while other clients hold all
    /// planning slots. With `releases`, the other clients then release their slots.
    async fn start_order_without_free_slot(
        limit: std::time::Duration,
        releases: bool,
    ) -> (Result<(), Error>, std::time::Duration) {
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 1 << 20);
        let cache = Cache::open(config, Box::new(pierhead_eviction::Lru::default())).unwrap();
        let client = pierhead_remote::Client::new(pierhead_remote::Config::default()).unwrap();
        let config = bundle_server::Config::new(data.path(), 64 << 20, 16 << 20);
        let bundle_server = BundleServer::open(config, Proxy::blobs(&cache)).unwrap();
        let proxy = Proxy::with_bundle_server(
            cache,
            client,
            Config::default(),
            Some(bundle_server.clone()),
        );
        let context = proxy.current();
        let address = ([10, 0, 0, 1], 1).into();
        let client = Arc::new(ClientUsage::operator());
        let (parts, ()) = http::Request::new(()).into_parts();
        let handler = BundleHandler {
            context: &context,
            peer: &Peer::refused(address, client, Limit::UpstreamRequests),
            parts: &parts,
            name: &"app".parse().unwrap(),
            registry: "registry.example".parse().unwrap(),
            repository: "app".parse().unwrap(),
            deadline: Deadline::new(limit),
        };
        let image = ResolvedImage {
            digest: Digest::of(Algorithm::Sha256, b"no image"),
            blobs: Vec::new(),
            outcome: CacheOutcome::Hit,
        };
        let other = |nth| ClientKey::of([10, 0, 0, nth].into());
        let mut slots = [
            context.plan_slots.acquire(other(2)).await,
            context.plan_slots.acquire(other(3)).await,
        ];
        let mut order = pin!(handler.start_order(&bundle_server, &image));
        let poll = order.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        assert_eq!(context.plan_slots.waiting(), 1);
        if releases {
            slots.iter_mut().for_each(|slot| drop(slot.take()));
        }
        let started = Instant::now();
        let test_limit = std::time::Duration::from_secs(20);
        let result = tokio::time::timeout(test_limit, order).await;
        let result = result.expect("the handler keeps its deadline").map(drop);
        bundle_server.close();
        (result, started.elapsed())
    }
}
