//! Answers of the extension: which image is meant, whether it may be had, what of it leaves.

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
use pierhead_host::ClientKey;
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
use crate::http::range::is_known;
use crate::http::respond;
use crate::metrics::CacheOutcome;
use crate::pull::document::MAX_EAGER;
use crate::pull::manifest::manifest;
use crate::refusal_log::Refusal;

/// The answer to `_oci/ext/discover`.
pub(crate) const EXTENSIONS: &str = concat!(
    r#"{"extensions":[{"name":"_pierhead","description":"Delta bundles of unmodified images: only the file contents "#,
    r#"that a worker lacks.","url":"docs/formats/bundle.md","endpoints":["_pierhead/bundle","_pierhead/file","#,
    r#""_pierhead/trace"]}]}"#
);

/// Images of `have` that a client of pass-through is asked about upstream: each may be a question there.
const MAX_CHECKED: usize = 16;
/// Unknown images that a header of the answer names; the bundle names those that are known.
const MAX_NAMED: usize = 16;

/// It has just been queued.
const QUEUED: Progress = Progress {
    stage: Stage::Wait,
    done: 0,
    total: 0,
};

/// One question, by somebody who may pull the manifest that it names.
pub(crate) struct BundleHandler<'a> {
    pub(crate) context: &'a Arc<RequestContext>,
    pub(crate) peer: &'a Peer,
    pub(crate) parts: &'a Parts,
    pub(crate) name: &'a Name,
    pub(crate) registry: Registry,
    pub(crate) repository: Repository,
    pub(crate) deadline: Deadline,
}

/// An image that was found.
struct ResolvedImage {
    digest: Digest,
    /// Config and layers.
    blobs: Vec<Digest>,
    outcome: CacheOutcome,
}

type HandlerResult = Result<(Response<Body>, CacheOutcome), Error>;

impl BundleHandler<'_> {
    pub(crate) async fn answer(&self, bundle_request: BundleRequest) -> HandlerResult {
        let Some(library) = &self.context.library else {
            let failure = self.context.library_failure.get();
            return Err(failure.map_or(Error::NoBundles, |why| {
                Error::BundlesUnavailable(why.clone())
            }));
        };
        match bundle_request {
            BundleRequest::Other => Err(Error::Internal),
            BundleRequest::Bundle(ask, target) => {
                let started = Instant::now();
                let result = self.bundle(library, &ask, target).await;
                self.log(&ask, &result, started);
                result
            }
            BundleRequest::File(content, image) => self.file(library, content, image).await,
            BundleRequest::Trace(trace, target) => self.trace(library, trace, target).await,
        }
    }

    async fn trace(&self, library: &BundleServer, trace: Trace, target: Target) -> HandlerResult {
        let image = self.image(target, trace.platform.as_deref()).await?;
        self.ready(library, &image).await?;
        let client = self.client();
        let (noting, entries) = (library.clone(), trace.files.len());
        // Takes a planning slot, since it reads a whole table.
        let noted =
            self.in_planning_slot(move || noting.trace(client, &image.digest, &trace.files));
        let noted = noted.await?.map_err(bundle_error)?;
        tracing::info!(
            registry = %self.registry,
            repository = %self.repository,
            image = %image.digest,
            client = %self.peer.address,
            entries,
            matched = noted.matched,
            "trace"
        );
        if noted.matched == 0 {
            return Err(Error::BadRequest(format!(
                "none of the {entries} entries of this trace is a file of {}",
                image.digest
            )));
        }
        if noted.is_new {
            let (library, cache) = (library.clone(), self.context.cache.clone());
            self.context.hot_ranges.report(library, cache, image.digest);
        }
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let report = TraceReport {
            matched: count(noted.matched),
            clients: count(noted.clients),
        };
        self.json(&report, CacheOutcome::None)
    }

    /// Responds with the start order of an image.
    async fn start_order(&self, library: &BundleServer, image: &ResolvedImage) -> HandlerResult {
        let (of, digest) = (library.clone(), image.digest);
        // It reads a whole table and programs of the image, as a plan does.
        let order = self.in_planning_slot(move || of.start_order(&digest));
        let order = order.await?.map_err(bundle_error)?;
        self.json(&order, image.outcome)
    }

    /// Waits for a planning slot and runs `work` in it, which may block.
    ///
    /// A client that leaves while it waits runs nothing. Work that has begun runs to its end, and keeps the slot.
    ///
    /// # Errors
    /// [`Error::NotReady`] when the deadline of the request comes first: the client asks again.
    async fn in_planning_slot<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let ticket = self.context.limits.queue(&self.peer.client)?;
        let work = async {
            let slot = self.context.planning.acquire(self.client()).await;
            blocking(move || {
                let _held = (slot, ticket);
                work()
            })
            .await
        };
        let done = tokio::time::timeout_at(self.deadline.last(), work).await;
        done.unwrap_or(Err(Error::NotReady(QUEUED)))
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
        library: &BundleServer,
        ask: &BundleQuery,
        target: Target,
    ) -> HandlerResult {
        let image = self.image(target, ask.platform.as_deref()).await?;
        self.ready(library, &image).await?;
        if ask.start_order {
            return self.start_order(library, &image).await;
        }
        let mut have = Vec::with_capacity(ask.have.len());
        let mut asked = 0;
        for digest in &ask.have {
            let is_known = library.state(digest) == State::Ready
                && (!self.acts_for_client() || asked < MAX_CHECKED)
                && self.may_have(library, digest, &mut asked).await;
            let has_layers = ask.have_layers.contains(digest);
            have.push(bundle_server::RequestBase {
                manifest: *digest,
                is_known,
                has_layers,
            });
        }
        let named = have
            .iter()
            .filter(|have| !have.is_known)
            .take(MAX_NAMED)
            .map(|have| have.manifest.to_string())
            .collect::<Vec<_>>()
            .join(", ");
        let (bundle, is_new) = match self.plan(library, image.digest, have, ask).await? {
            Err(pierhead_toc::Error::Missing(_)) => {
                // What it is made of has left since: it says how far it is from here.
                self.ready(library, &image).await?;
                return Err(Error::NotReady(QUEUED));
            }
            other => other.map_err(bundle_error)?,
        };
        let etag = bundle.etag().to_owned();
        let part = ask.part.as_ref().filter(|it| it.etag == etag);
        let mut builder = respond::respond(StatusCode::OK, image.outcome).header(ETAG, &etag);
        if !named.is_empty() {
            builder = builder.header(UNKNOWN_BASE_IMAGES, named);
        }
        if part.is_none() && is_known(&self.parts.headers, etag.as_bytes()) {
            let builder = builder.status(StatusCode::NOT_MODIFIED);
            return Ok((respond::finish(builder, Body::empty()), image.outcome));
        }
        let range = part.map(|part| (part.first, part.end.unwrap_or(u32::MAX)));
        let share = ask.share;
        // Of one that was planned for this question, nobody has been given the other pieces.
        let pieces = ask.pieces && !is_new;
        // It looks at packs, which somebody may be about to delete or to write out.
        let stream = blocking(move || match share {
            Some(share) => bundle.share(share, pieces),
            None => bundle.stream(range),
        })
        .await?;
        let stream = stream.map_err(bundle_error)?;
        let builder = builder.header(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        let body = self.stream(stream, format!("bundle of {}", image.digest));
        Ok((
            with_length(builder, body, &self.parts.method),
            image.outcome,
        ))
    }

    /// Finds what was planned, or what somebody goes on with, or plans it when it is this client's turn, and says so: of many
    /// shares that are asked for at once, the first takes a turn.
    async fn plan(
        &self,
        library: &BundleServer,
        want: Digest,
        have: Vec<bundle_server::RequestBase>,
        ask: &BundleQuery,
    ) -> Result<Result<(bundle_server::Bundle, bool), pierhead_toc::Error>, Error> {
        let (of, layers) = (library.clone(), ask.layers);
        let etag = ask.part.as_ref().map(|part| part.etag.clone());
        let (have, found) = blocking(move || {
            let found = of.planned(&want, &have, layers);
            let is_other = |bundle: &Option<bundle_server::Bundle>, etag: &str| {
                bundle.as_ref().is_none_or(|bundle| bundle.etag() != etag)
            };
            let found = match (found, etag) {
                (Ok(found), Some(etag)) if is_other(&found, &etag) => {
                    let earlier = of.superseded(&want, &have, layers, &etag);
                    earlier.map(|earlier| earlier.or(found))
                }
                (found, _) => found,
            };
            (have, found)
        })
        .await?;
        if let Some(found) = found.transpose() {
            return Ok(found.map(|found| (found, false)));
        }
        if ask.share.is_some_and(|Share(nth, _)| nth > 0) {
            return Err(Error::NotReady(QUEUED));
        }
        let (library, client) = (library.clone(), self.client());
        // Planned to its end, so that whoever comes back finds it.
        let plan = self.in_planning_slot(move || library.bundle_for(client, &want, &have, layers));
        Ok(plan.await?.map(|made| (made, true)))
    }

    async fn file(
        &self,
        library: &BundleServer,
        content: FileDigest,
        image: Digest,
    ) -> HandlerResult {
        let image = self.image(Target::Digest(image), None).await?;
        self.ready(library, &image).await?;
        let of = library.clone();
        let stream = blocking(move || of.file(&image.digest, &content)).await?;
        let stream = stream.map_err(bundle_error)?.ok_or(Error::NoSuchFile)?;
        let etag = format!("\"{content}\"");
        let mut builder = respond::respond(StatusCode::OK, CacheOutcome::Hit)
            .header(ETAG, &etag)
            .header(respond::DOCKER_CONTENT_DIGEST, content.to_string());
        if is_known(&self.parts.headers, etag.as_bytes()) {
            builder = builder.status(StatusCode::NOT_MODIFIED);
            return Ok((respond::finish(builder, Body::empty()), CacheOutcome::Hit));
        }
        let builder = builder.header(CONTENT_TYPE, "application/octet-stream");
        let body = self.stream(stream, content.to_string());
        Ok((
            with_length(builder, body, &self.parts.method),
            CacheOutcome::Hit,
        ))
    }

    fn stream(&self, stream: Stream, name: String) -> Body {
        let length = stream.len();
        let records = RecordStream::new(stream, self.context.making.clone(), name);
        Body::records(records, length)
    }

    /// The image that is meant, as a client that pulls it would find it.
    async fn image(
        &self,
        mut target: Target,
        platform: Option<&str>,
    ) -> Result<ResolvedImage, Error> {
        for _ in 0..=Manifest::MAX_DEPTH {
            let reference = self.reference(target);
            let (document, outcome) =
                manifest(self.context, &self.peer.client, &reference, self.deadline).await?;
            // Large ones are in memory one after the other.
            let mut turn = None;
            if document.size() > MAX_EAGER {
                turn = self.context.parsing.acquire().await.ok();
            }
            let bytes = document.bytes(Manifest::MAX_SIZE).await?;
            let parsed = Manifest::parse(bytes, Some(document.media_type.as_str()))?;
            drop(turn);
            let Document::Index { .. } = parsed.body else {
                return Ok(ResolvedImage {
                    digest: document.digest,
                    blobs: parsed.children().map(|child| child.digest).collect(),
                    outcome,
                });
            };
            let platform = platform.ok_or_else(|| {
                Error::BadRequest("this is an index: say which platform is meant".into())
            })?;
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

    /// Asks as for a pull of that manifest of this repository.
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

    /// The client on whose behalf the library works.
    fn client(&self) -> ClientKey {
        ClientKey::of(self.peer.address)
    }

    fn acts_for_client(&self) -> bool {
        self.context.client_pass_through().is_some()
    }

    /// What is made of blobs that came from another registry is not this one's: see `access::pass_through`.
    async fn may_have_blobs(&self, blobs: &[Digest]) -> Result<(), Error> {
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

    async fn may_have(&self, library: &BundleServer, digest: &Digest, asked: &mut usize) -> bool {
        if !self.acts_for_client() {
            return true;
        }
        *asked += 1;
        let Some(blobs) = library.blobs(digest) else {
            return false;
        };
        self.context.may_share(&self.registry, digest)
            && self.may_pull(Target::Digest(*digest)).await.is_ok()
            && self.may_have_blobs(&blobs).await.is_ok()
    }

    /// Returns when the image can be bundled, or says how far it is.
    async fn ready(&self, library: &BundleServer, image: &ResolvedImage) -> Result<(), Error> {
        match library.awaited_by(self.client(), &image.digest) {
            State::Ready => return self.may_have_blobs(&image.blobs).await,
            State::Refused(why) => return Err(Error::NotBundled(why)),
            State::Working(progress) => return Err(Error::NotReady(progress)),
            _ => {}
        }
        let cache = &self.context.cache;
        if image.blobs.iter().all(|digest| cache.is_stored(digest)) {
            let of = bundle_server::Image {
                manifest: image.digest,
                repository: format!("{}/{}", self.registry, self.repository),
            };
            library.offer_for(self.client(), of);
            library.awaited_by(self.client(), &image.digest);
            return Err(Error::NotReady(QUEUED));
        }
        let reference = self.reference(Target::Digest(image.digest));
        let progress = image_pull::progress(self.context, &self.peer.client, &reference)?;
        Err(Error::NotReady(progress))
    }

    /// The one line of a bundle.
    fn log(&self, ask: &BundleQuery, result: &HandlerResult, started: Instant) {
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let client = self.peer.address;
        let Self {
            registry,
            repository,
            ..
        } = self;
        let (want, have) = (&*ask.want, ask.have.len());
        match result {
            Ok(_) if ask.share.is_some_and(|Share(nth, _)| nth > 0) => {
                tracing::debug!(%registry, %repository, want, %client, share = ?ask.share, "share of a bundle");
            }
            Ok((response, _)) => {
                let status = response.status().as_u16();
                let bytes = http_body::Body::size_hint(response.body()).exact();
                let etag = response.headers().get(ETAG).and_then(|it| it.to_str().ok());
                tracing::info!(%registry, %repository, want, have, %client, status, bytes, etag, duration_ms, "bundle");
            }
            // A client asks again every second.
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
                tracing::info!(%registry, %repository, want, have, %client, %error, duration_ms, "bundle refused");
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

fn bundle_error(error: pierhead_toc::Error) -> Error {
    match error.fault() {
        Fault::Theirs => Error::NotBundled(error.to_string()),
        Fault::Ours | Fault::Nobody => Error::Bundle(Arc::new(error)),
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
    async fn work_waits_for_a_planning_slot_until_the_deadline_and_no_longer() {
        let within = std::time::Duration::from_millis(50);
        let (result, waited) = order_while_slots_are_held(within, false).await;
        assert!(matches!(result, Err(Error::NotReady(_))), "{result:?}");
        assert!(waited >= within / 2, "{waited:?}");
    }

    #[tokio::test]
    async fn the_order_of_a_start_waits_for_a_planning_slot() {
        let within = std::time::Duration::from_secs(60);
        let (result, _) = order_while_slots_are_held(within, true).await;
        assert!(matches!(result, Err(Error::Bundle(_))), "{result:?}");
    }

    /// Asks for the order of an unknown image while other clients hold all planning slots, and frees them if told so.
    async fn order_while_slots_are_held(
        within: std::time::Duration,
        frees: bool,
    ) -> (Result<(), Error>, std::time::Duration) {
        let data = tempfile::tempdir().unwrap();
        let config = pierhead_cache::Config::new(data.path(), 1 << 20);
        let cache = Cache::open(config, Box::new(pierhead_eviction::Lru::default())).unwrap();
        let client = pierhead_remote::Client::new(pierhead_remote::Config::default()).unwrap();
        let config = bundle_server::Config::new(data.path(), 64 << 20, 16 << 20);
        let library = BundleServer::open(config, Proxy::blobs(&cache)).unwrap();
        let proxy = Proxy::with_library(cache, client, Config::default(), Some(library.clone()));
        let context = proxy.current();
        let address = ([10, 0, 0, 1], 1).into();
        let client = Arc::new(ClientUsage::operator());
        let (parts, ()) = http::Request::new(()).into_parts();
        let asked = BundleHandler {
            context: &context,
            peer: &Peer::refused(address, client, Limit::Fetches),
            parts: &parts,
            name: &"app".parse().unwrap(),
            registry: "registry.example".parse().unwrap(),
            repository: "app".parse().unwrap(),
            deadline: Deadline::new(within),
        };
        let image = ResolvedImage {
            digest: Digest::of(Algorithm::Sha256, b"no image"),
            blobs: Vec::new(),
            outcome: CacheOutcome::Hit,
        };
        let other = |nth| ClientKey::of([10, 0, 0, nth].into());
        let mut held = [
            context.planning.acquire(other(2)).await,
            context.planning.acquire(other(3)).await,
        ];
        let mut order = pin!(asked.start_order(&library, &image));
        let poll = order.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        assert_eq!(context.planning.waiting(), 1);
        if frees {
            held.iter_mut().for_each(|slot| drop(slot.take()));
        }
        let started = Instant::now();
        let limit = std::time::Duration::from_secs(20);
        let result = tokio::time::timeout(limit, order).await;
        let result = result.expect("it ends by its deadline").map(drop);
        library.close();
        (result, started.elapsed())
    }
}
