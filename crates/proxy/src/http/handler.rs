//! Handles one HTTP request: checks limits and access, routes the request to its endpoint, and
//! builds the response.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, WARNING, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version};
use http_body::Body as _;
use pierhead_host::ClientKey;
use pierhead_oci::{Endpoint, MediaType, Name, ParseError, Reference, Registry, Repository};

use crate::access::admit::admit;
use crate::bundle::handler::{BundleHandler, EXTENSIONS};
use crate::bundle::image_watch;
use crate::bundle::request::BundleRequest;
use crate::context::RequestContext;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::http::body::{Body, MemoryNeed, ResponseAccount};
use crate::http::peer::Peer;
use crate::http::representation::Representation;
use crate::http::respond::{self, CHALLENGE, JSON, OCI_NAMESPACE};
use crate::http::route::route;
use crate::limits::head;
use crate::limits::limit::Limit;
use crate::limits::memory::{MAX_FRAME_BYTES, MAX_UNCOUNTED};
use crate::limits::resource_limits::ResourceLimits;
use crate::metrics::{CacheOutcome, EndpointKind};
use crate::pull::blob::BlobSource;
use crate::pull::blob_request::BlobRequest;
use crate::pull::document::MAX_EAGER;
use crate::pull::{lists, manifest};
use crate::refusal_log::Refusal;

/// Responds to one request. The head of the response is ready before the configured deadline; the
/// body may be sent later. `body` is the body of the request, or the reason why it could not be
/// read.
pub(crate) async fn handle(
    context: &Arc<RequestContext>,
    peer: &Peer,
    request: &Parts,
    body: Result<Bytes, Error>,
) -> Response<Body> {
    let started = Instant::now();
    let deadline = Deadline::new(context.config().response_timeout);
    let (in_progress, exceeded) = match peer.activity.begin() {
        Ok(in_progress) => (Some(in_progress), None),
        Err(limit) => (None, Some(limit)),
    };
    let mut handler = RequestHandler {
        context,
        peer,
        parts: request,
        body: &body,
        exceeded,
        deadline,
        kind: EndpointKind::Other,
        outcome: CacheOutcome::None,
    };
    let result = match tokio::time::timeout_at(deadline.end(), handler.handle()).await {
        // A manifest has its first piece already.
        Ok(Ok(response)) if handler.kind == EndpointKind::Manifest => Ok(response),
        Ok(Ok(response)) => handler.with_first_piece(response).await,
        Ok(Err(error)) => Err(error),
        // The request exceeded its deadline: either disk I/O hangs, or a part of the handler missed
        // its own deadline.
        Err(_) => Err(Error::Timeout),
    };
    let mut response = result.unwrap_or_else(|error| handler.error_response(&error));
    handler.add_namespace(&mut response);
    let RequestHandler { kind, outcome, .. } = handler;
    context.metrics.responded(kind, outcome, response.status());
    let expected = response.body().size_hint().exact();
    let account = ResponseAccount::new(context.metrics.clone(), kind, started, expected);
    response.map(|body| {
        body.accounted(account)
            .with_response_in_progress(in_progress)
    })
}

/// Whether the text has only characters of a host and port (RFC 3986, sections 3.2.2 and 3.2.3).
fn is_host(text: &[u8]) -> bool {
    text.iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte))
}

struct RequestHandler<'a> {
    context: &'a Arc<RequestContext>,
    peer: &'a Peer,
    parts: &'a Parts,
    body: &'a Result<Bytes, Error>,
    /// The limit that serving this request would exceed. `None` if no limit would be exceeded.
    exceeded: Option<Limit>,
    deadline: Deadline,
    /// The kind of endpoint: `Other` until the path is parsed.
    kind: EndpointKind,
    outcome: CacheOutcome,
}

impl RequestHandler<'_> {
    /// Adds the header `OCI-Namespace` to a response about content that the client requested by the
    /// query parameter `ns`.
    fn add_namespace(&self, response: &mut Response<Body>) {
        let is_content = matches!(
            self.kind,
            EndpointKind::Manifest
                | EndpointKind::Blob
                | EndpointKind::Tags
                | EndpointKind::Referrers
        );
        if is_content
            && let Some(query) = self.parts.uri.query()
            && let Ok(Some(namespace)) = Endpoint::namespace_text(Some(query))
            && namespace.parse::<Registry>().is_ok()
            && let Ok(value) = HeaderValue::try_from(namespace)
        {
            response.headers_mut().insert(OCI_NAMESPACE, value);
        }
    }

    /// Reserves the memory that the response needs, and reads the first piece of its body. If the
    /// upstream sends wrong bytes, a small body fails before its first byte: then the client gets
    /// an error with its cause instead of an aborted body.
    async fn with_first_piece(&self, response: Response<Body>) -> Result<Response<Body>, Error> {
        let (context, peer) = (self.context, self.peer);
        let response = reserve_memory(&context.limits, peer, self.parts.version, response)?;
        let pacer = context.pacer.as_ref();
        let mut response =
            response.map(|body| body.with_progress(self.kind, &peer.progress, pacer));
        // The wait ends before the deadline of the response, which leaves time for the head.
        let until = self.deadline.wait_without_stale();
        let read = response
            .body_mut()
            .read_first_piece(peer.sends_files, until);
        read.await.map_err(|(error, content)| {
            let refusal = Refusal {
                event: "content failed before its first byte",
                cause: error.cause(),
                client: Some(peer.address),
                registry: None,
            };
            if context.refusals.is_new(&refusal, &content, &error) {
                let (endpoint, client) = (self.kind, peer.address);
                tracing::warn!(?endpoint, content, %client, %error, "content failed before its first byte");
            }
            error
        })?;
        Ok(response)
    }

    fn error_response(&mut self, error: &Error) -> Response<Body> {
        self.outcome = CacheOutcome::None;
        if let Error::Limited(limit) = error {
            self.context.metrics.limited(*limit);
        }
        tracing::debug!(client = %self.peer.address, path = self.parts.uri.path(), %error, "refused");
        let mut response = respond::error(self.kind, &self.parts.method, error);
        // The connection closes after this response, in the same way as after a head that the
        // parser refuses.
        let is_head = matches!(error, Error::Limited(Limit::Headers | Limit::Uri));
        if is_head && self.parts.version < Version::HTTP_2 {
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn handle(&mut self) -> Result<Response<Body>, Error> {
        if let Some(limit) = self.peer.exceeded.or(self.exceeded) {
            return Err(limit.into());
        }
        head::check(&self.context.config().limits, self.parts)?;
        let Parts { method, uri, .. } = self.parts;
        // A request with two Host headers or an ambiguous one is refused, because a filter in front
        // of pierhead could take another host than pierhead.
        let mut hosts = self.parts.headers.get_all(HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        let is_one = self.parts.version != Version::HTTP_11 || (host.is_some() && more.is_none());
        if !is_one || !host.is_none_or(|host| is_host(host.as_bytes())) {
            return Err(Error::Host);
        }
        let (path, query) = (uri.path(), uri.query());
        if method != Method::GET && method != Method::HEAD && method != Method::POST {
            return Err(Error::ReadOnly);
        }
        let path = if path == "/v2" { "/v2/" } else { path };
        let endpoint = match Endpoint::parse(path, query) {
            // A push gets this error for every path, also for an invalid path.
            Err(_) if method == Method::POST => return Err(Error::ReadOnly),
            endpoint => endpoint?,
        };
        self.kind = EndpointKind::of(&endpoint);
        let bundle_request = match (&endpoint, method == Method::POST) {
            (Endpoint::Bundle { .. } | Endpoint::Trace { .. } | Endpoint::File { .. }, is_post) => {
                BundleRequest::of(&endpoint, is_post, self.parts, self.body)?
            }
            (_, true) => return Err(Error::ReadOnly),
            _ => BundleRequest::Other,
        };
        // A client that may pull the manifest of an image may also read the contents of the image
        // through the bundle extension.
        let as_pull = bundle_request.as_pull(&endpoint);
        let checked = as_pull.as_ref().unwrap_or(&endpoint);
        let admitted = admit(self.context, self.peer, self.parts, checked, self.deadline).await?;
        let Some(client_context) = admitted else {
            return self.serve(endpoint, bundle_request).await;
        };
        let is_base = endpoint == Endpoint::Base;
        let mut handler = RequestHandler {
            context: &client_context,
            ..*self
        };
        let result = Box::pin(handler.serve(endpoint, bundle_request)).await;
        (self.kind, self.outcome) = (handler.kind, handler.outcome);
        result.map(|response| match is_base {
            true => with_challenge(response, self.peer),
            false => response,
        })
    }

    /// Serves a request that was admitted.
    async fn serve(
        &mut self,
        endpoint: Endpoint,
        bundle_request: BundleRequest,
    ) -> Result<Response<Body>, Error> {
        let (method, query) = (&self.parts.method, self.parts.uri.query());
        match endpoint {
            // The status is 200 even if all upstreams are down, because podman drops a mirror whose
            // `/v2/` fails.
            Endpoint::Base => Ok(self.constant("{}")),
            Endpoint::Discover { .. } => {
                Ok(self.constant(match self.context.bundle_server.is_some() {
                    true => EXTENSIONS,
                    false => r#"{"extensions":[]}"#,
                }))
            }
            Endpoint::Bundle { name } | Endpoint::Trace { name } | Endpoint::File { name, .. } => {
                let (registry, repository) = self.route(&name)?;
                let handler = BundleHandler {
                    context: self.context,
                    peer: self.peer,
                    parts: self.parts,
                    name: &name,
                    registry,
                    repository,
                    deadline: self.deadline,
                };
                // The future is boxed because it is large, and pulls do not need it.
                let (response, outcome) = Box::pin(handler.handle(bundle_request)).await?;
                self.outcome = outcome;
                Ok(response)
            }
            Endpoint::Manifest { name, target } => {
                let (registry, repository) = self.route(&name)?;
                self.manifest(Reference {
                    registry,
                    repository,
                    target,
                })
                .await
            }
            Endpoint::Blob { name, digest } => {
                let (registry, repository) = self.route(&name)?;
                self.blob(BlobRequest {
                    registry,
                    repository,
                    digest,
                    client: self.peer.client.clone(),
                })
                .await
            }
            Endpoint::Tags { name, n, last } => {
                let (registry, repository) = self.route(&name)?;
                let page = lists::TagPageRequest {
                    name: &name,
                    query,
                    n,
                    last: last.as_deref(),
                };
                let list_request = self.list_request(registry, repository);
                let (page, outcome) = lists::tags(&list_request, page).await?;
                self.outcome = outcome;
                let mut builder = respond::respond(StatusCode::OK, outcome);
                if let Some(next) = page.next {
                    builder = builder.header(http::header::LINK, next);
                }
                for warning in page.warnings.iter() {
                    builder = builder.header(WARNING, warning);
                }
                Ok(respond::text(builder, method, JSON, page.body))
            }
            Endpoint::Referrers {
                name,
                digest,
                artifact_type,
            } => {
                let (registry, repository) = self.route(&name)?;
                let filter = artifact_type.as_ref().map(MediaType::as_str);
                let list_request = self.list_request(registry, repository);
                let (list, outcome) = lists::referrers(&list_request, digest, filter).await?;
                self.outcome = outcome;
                let mut builder = respond::respond(StatusCode::OK, outcome);
                if filter.is_some() {
                    builder = builder.header(respond::OCI_FILTERS_APPLIED, "artifactType");
                }
                for warning in list.warnings.iter() {
                    builder = builder.header(WARNING, warning);
                }
                Ok(respond::text(
                    builder,
                    method,
                    list.media_type.as_str(),
                    list.body,
                ))
            }
            Endpoint::Upload { .. } => Err(Error::ReadOnly),
            _ => Err(ParseError::Endpoint.into()),
        }
    }

    /// Whether to log this refusal now, or to suppress it as a repetition.
    fn is_new(
        &self,
        event: &'static str,
        registry: &Registry,
        image: impl Hash,
        error: &Error,
    ) -> bool {
        let refusal = Refusal {
            event,
            cause: error.cause(),
            client: Some(self.peer.address),
            registry: Some(registry),
        };
        self.context.refusals.is_new(&refusal, image, error)
    }

    fn list_request(&self, registry: Registry, repository: Repository) -> lists::ListRequest<'_> {
        lists::ListRequest {
            context: self.context,
            client: &self.peer.client,
            registry,
            repository,
            deadline: self.deadline,
        }
    }

    /// Returns the registry and repository of the request if the access rules allow them.
    fn route(&self, name: &Name) -> Result<(Registry, Repository), Error> {
        let config = self.context.config();
        let (registry, repository) = route(name, self.parts.uri.query(), config)?;
        config
            .rules
            .check(&registry, &repository)
            .inspect_err(|error| {
                // A refused pull gets one log line, for its manifest, because clients request no
                // blobs after a refused manifest.
                if self.kind == EndpointKind::Manifest
                    && self.is_new("pull refused", &registry, &repository, error)
                {
                    let target = self.parts.uri.path().rsplit_once('/');
                    let target = target.map_or("", |(_, target)| target);
                    let separator = if target.contains(':') { '@' } else { ':' };
                    let reference = format_args!("{registry}/{repository}{separator}{target}");
                    let client = self.peer.address;
                    let status = respond::status(EndpointKind::Manifest, error).0.as_u16();
                    tracing::info!(%reference, %client, status, %error, "pull refused");
                }
            })?;
        Ok((registry, repository))
    }

    fn constant(&self, body: &'static str) -> Response<Body> {
        let builder = respond::respond(StatusCode::OK, CacheOutcome::None);
        respond::whole(
            builder,
            &self.parts.method,
            JSON,
            Bytes::from_static(body.as_bytes()),
        )
    }

    async fn manifest(&mut self, reference: Reference) -> Result<Response<Body>, Error> {
        let started = Instant::now();
        // The first piece is read before the log line, so that the line has the status of a failed
        // read, too.
        let result = match self.document(&reference).await {
            Ok((response, digest)) => {
                let response = self.with_first_piece(response).await;
                response.map(|response| (response, digest))
            }
            Err(error) => Err(error),
        };
        let duration_ms = duration_ms(started);
        let client = self.peer.address;
        // Each pull gets one log line, for its manifest.
        match &result {
            Ok((response, digest)) => {
                let (cache, status) = (self.outcome.header(), response.status().as_u16());
                let Parts { method, uri, .. } = self.parts;
                // A repeated cache hit is logged only at level debug: formatting and writing a line
                // costs as much as the rest of the hit.
                let is_new = self.outcome != CacheOutcome::Hit
                    || (self.context.log_dedup).is_new((client, method, uri, digest, status));
                if is_new {
                    tracing::info!(%reference, %digest, %client, cache, status, duration_ms, "pull");
                } else {
                    tracing::debug!(%reference, %digest, %client, cache, status, duration_ms, "pull");
                }
            }
            Err(error) if !self.is_new("pull refused", &reference.registry, &reference, error) => {}
            Err(error) => {
                let status = respond::status(EndpointKind::Manifest, error).0;
                let (code, error) = (status.as_u16(), tracing::field::display(error));
                // A response 4xx is no warning, because clients regularly request images that do
                // not exist. A response 5xx needs attention.
                if status.is_server_error() {
                    tracing::warn!(%reference, %client, status = code, error, duration_ms, "pull refused");
                } else {
                    tracing::info!(%reference, %client, status = code, error, duration_ms, "pull refused");
                }
            }
        }
        result.map(|(response, _)| response)
    }

    async fn document(
        &mut self,
        reference: &Reference,
    ) -> Result<(Response<Body>, pierhead_oci::Digest), Error> {
        let mut retried = false;
        loop {
            let (document, outcome) =
                manifest::manifest(self.context, &self.peer.client, reference, self.deadline)
                    .await?;
            self.outcome = outcome;
            let Reference {
                registry,
                repository,
                ..
            } = reference;
            let blob_request = || BlobRequest {
                registry: registry.clone(),
                repository: repository.clone(),
                digest: document.digest,
                client: self.peer.client.clone(),
            };
            if self.parts.method == Method::GET {
                let client = ClientKey::of(self.peer.address);
                image_watch::add(self.context, client, &document, reference);
            }
            let representation = match document.stored_blob() {
                _ if self.parts.method == Method::HEAD => {
                    Representation::head(Some(document.size()))
                }
                Some(blob) if document.size() > MAX_EAGER => Representation::of(
                    BlobSource::of(self.context.clone(), blob_request(), blob.clone()),
                    Some(document.size()),
                ),
                // A small document is read before the head of the response is sent. If the document
                // is damaged, pierhead fetches it again, and the client notices nothing.
                _ => match document
                    .bytes(usize::try_from(document.size()).unwrap_or(usize::MAX))
                    .await
                {
                    Ok(bytes) => Representation::bytes(bytes),
                    Err(error) if retried => return Err(error.into()),
                    Err(_) => {
                        retried = true;
                        continue;
                    }
                },
            };
            let mut response = representation
                .respond(
                    &self.parts.headers,
                    &document.digest,
                    document.media_type.as_str(),
                    outcome,
                )
                .await?;
            for warning in document.warnings.iter() {
                // `from_str` cannot fail here, because the text was the value of a header before.
                if let Ok(warning) = HeaderValue::from_str(warning) {
                    response.headers_mut().append(WARNING, warning);
                }
            }
            return Ok((response, document.digest));
        }
    }

    async fn blob(&mut self, blob_request: BlobRequest) -> Result<Response<Body>, Error> {
        let digest = blob_request.digest;
        let (registry, client) = (blob_request.registry.clone(), blob_request.client.clone());
        let found = async {
            if self.parts.method == Method::HEAD && !self.context.is_available(&blob_request) {
                let size = self.context.size_upstream(&blob_request).await?;
                return Ok::<_, Error>((Representation::head(size), CacheOutcome::Miss));
            }
            let (mut source, outcome) = BlobSource::find(self.context, blob_request).await?;
            let size = source.size().await?;
            let is_head = self.parts.method == Method::HEAD;
            Ok((
                if is_head {
                    Representation::head(size)
                } else {
                    Representation::of(source, size)
                },
                outcome,
            ))
        };
        let (representation, outcome) =
            match tokio::time::timeout_at(self.deadline.wait_without_stale(), found).await {
                Ok(found) => found?,
                // If a limit of pierhead delayed the request, the error names that limit and not
                // the registry.
                Err(_) => match self.context.limits.why_waiting(&client, &registry, &digest) {
                    Some(limit) => return Err(limit.into()),
                    None => return Err(self.deadline.upstream_timeout(&registry)),
                },
            };
        self.outcome = outcome;
        representation
            .respond(
                &self.parts.headers,
                &digest,
                "application/octet-stream",
                outcome,
            )
            .await
    }
}

/// Adds the authentication challenge to the response for `/v2/`. podman sends credentials only
/// after a challenge, even if the status is 200.
pub(crate) fn with_challenge(mut response: Response<Body>, peer: &Peer) -> Response<Body> {
    if peer.is_private() {
        let challenge = HeaderValue::from_static(CHALLENGE);
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Number of frames that an unread HTTP/2 stream holds in memory: one in the send buffer, one that
/// waits for the send buffer, and one in transit from the queue to the buffer.
const H2_FRAMES: usize = 3;

/// Reserves the memory that the response body needs.
fn reserve_memory(
    limits: &ResourceLimits,
    peer: &Peer,
    version: Version,
    response: Response<Body>,
) -> Result<Response<Body>, Limit> {
    let frames = match version {
        Version::HTTP_2 => H2_FRAMES,
        _ => 1,
    };
    let bytes = match response.body().memory_need() {
        MemoryNeed::Bytes(bytes) if bytes < MAX_UNCOUNTED => return Ok(response),
        MemoryNeed::Bytes(bytes) => bytes,
        // Bytes that `sendfile` cannot send reserve their memory when they are read.
        MemoryNeed::File if peer.sends_files => 0,
        MemoryNeed::File | MemoryNeed::Stream => frames * MAX_FRAME_BYTES,
    };
    let reservation = limits.reserve_shared(&peer.client, bytes)?;
    Ok(response.map(|body| body.with_reservation(reservation)))
}

/// The value of the field `duration_ms` of a log line. The value is a `u64`, because the log writes
/// a `u128` as a JSON string.
fn duration_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
