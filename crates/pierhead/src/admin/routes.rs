//! Routes the requests of the admin listener to their handlers, and handles the short requests.
//! Other modules handle long requests, such as `verify`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use pierhead_oci::{Digest, Reference};
use serde::de::DeserializeOwned;

use super::api::{Blob, Blobs, EvictionStat, Pin, Pins, Stat, TierLimitChange, TierStat};
use super::body::{AdminResponse, document, error_response, json};
use super::route_table::{self, Action};
use super::{Admin, process, request_guard};

/// Maximum size of the body of a request to the admin listener, in bytes.
const MAX_BODY_BYTES: usize = 256 << 10;
/// Time limit for the arrival of the body of a request to the admin listener.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of blobs in one page of `GET /v1/blobs`.
const MAX_PAGE_BLOBS: usize = 1000;

/// A successful response, or an error response. The error is boxed, because a response is large and
/// an error is rare.
pub(super) type Outcome = Result<AdminResponse, Box<AdminResponse>>;

fn fail(status: StatusCode, error: impl ToString) -> Box<AdminResponse> {
    Box::new(error_response(status, error.to_string()))
}

/// The error of a pin with its cause, and the fix of a full disk.
fn pin_error(error: pierhead_cache::Error) -> String {
    let is_full = matches!(&error, pierhead_cache::Error::Io { source, .. }
        if source.kind() == std::io::ErrorKind::StorageFull);
    let fix = if is_full { ": free disk space" } else { "" };
    format!("{:#}{fix}", anyhow::Error::from(error))
}

impl Admin {
    /// Returns the response to a request. `may_serve_all` is false for a connection that may send
    /// only health probes.
    pub(crate) async fn respond(
        self: Arc<Self>,
        local: SocketAddr,
        peer: SocketAddr,
        request: Request<Incoming>,
        may_serve_all: bool,
    ) -> AdminResponse {
        let path = request.uri().path();
        if !may_serve_all && !matches!(path, "/livez" | "/readyz") {
            let text = "too many connections to the admin listener: only /livez and /readyz have reserved ones";
            let mut response = error_response(StatusCode::SERVICE_UNAVAILABLE, text);
            let close = header::HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            return response;
        }
        let outcome =
            match request_guard::check(local, peer, request.method(), path, request.headers()) {
                Ok(()) => self.route(request).await,
                Err(error) => Err(error),
            };
        outcome.unwrap_or_else(|error| *error)
    }

    async fn route(self: Arc<Self>, request: Request<Incoming>) -> Outcome {
        // Handles HEAD like GET: hyper removes the body from the response.
        let method = if request.method() == Method::HEAD {
            Method::GET
        } else {
            request.method().clone()
        };
        let path = request.uri().path().to_owned();
        let Some(action) = route_table::find(method.as_str(), &path) else {
            let (status, text) = match route_table::is_path(&path) {
                true => (
                    StatusCode::METHOD_NOT_ALLOWED,
                    format!("{path} does not support {method}"),
                ),
                false => (
                    StatusCode::NOT_FOUND,
                    format!("unknown path {path}: see /metrics, /livez, /readyz and /v1/stat"),
                ),
            };
            return Err(fail(status, text));
        };
        match action {
            Action::Live => Ok(document(
                StatusCode::OK,
                "text/plain; charset=utf-8",
                "alive\n",
            )),
            Action::Ready => Ok(self.ready().await),
            Action::Metrics => self.metrics(),
            Action::Stat => self.stat().await,
            Action::Config => Ok(self.config()),
            Action::ListBlobs => self.blobs(&Query::of(&request)),
            Action::ListImages => self.images().await,
            Action::RemoveImage => {
                let reference = Query::of(&request).reference()?;
                self.remove_image(&reference).await
            }
            Action::ListPins => Ok(json(&self.pins())),
            Action::Pin => self.pin(&Query::of(&request).reference()?).await,
            Action::Unpin => self.unpin(&Query::of(&request).reference()?).await,
            Action::Prune => self.prune(&read(request).await?).await,
            Action::ShowTier => self.tier(),
            Action::SetTierLimit => self.set_tier_limit(&read(request).await?).await,
            Action::Verify => self.verify(),
            Action::Warm => self.warm(read(request).await?),
        }
    }

    /// Handles `/readyz`: whether this process can serve its cache. Does not check upstreams, since
    /// cached images are served without upstreams, too.
    async fn ready(&self) -> AdminResponse {
        const TEXT: &str = "text/plain; charset=utf-8";
        let unready = |why: String| document(StatusCode::SERVICE_UNAVAILABLE, TEXT, why);
        if *self.stopping.borrow() {
            return unready("shutting down\n".to_owned());
        }
        match self.readiness.check().await {
            Ok(()) => document(StatusCode::OK, TEXT, "ready\n"),
            Err(why) => unready(format!("{why}\n")),
        }
    }

    fn metrics(&self) -> Outcome {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.metrics)
            .map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))?;
        Ok(document(
            StatusCode::OK,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            text,
        ))
    }

    /// Returns the configuration in effect, as text in the format of `pierhead config show`,
    /// without secrets.
    fn config(&self) -> AdminResponse {
        let text = self.effective.borrow().clone();
        document(StatusCode::OK, "application/toml; charset=utf-8", text)
    }

    /// Returns the state of the daemon. Walks over most files of the data folder.
    async fn stat(self: Arc<Self>) -> Outcome {
        // The walk owns the permit, since the walk continues after the client has closed its
        // connection.
        let permit = Arc::clone(&self.walking).acquire_owned().await;
        let read = move || {
            let _permit = permit;
            json(&self.read_stat())
        };
        let stat = tokio::task::spawn_blocking(read).await;
        stat.map_err(|error| fail(StatusCode::INTERNAL_SERVER_ERROR, error))
    }

    fn read_stat(&self) -> Stat {
        let stat = self.cache.stat();
        let eviction = self.cache.eviction();
        Stat {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_seconds: self.started.elapsed().as_secs(),
            listen: self
                .listen
                .borrow()
                .iter()
                .map(ToString::to_string)
                .collect(),
            tls: self.tls,
            config: self.config.clone(),
            data: self.data.clone(),
            blobs: stat.blobs,
            used: stat.used,
            reserved: stat.reserved,
            capacity: stat.capacity,
            room: Some(self.cache.room()),
            fills: stat.fills,
            pinned: stat.pinned,
            memory: process::resident_bytes(),
            disk: super::disk_usage::usage(self.data.as_ref(), &stat),
            bundle: self.bundle_server.as_ref().map(super::bundle::stat),
            eviction: EvictionStat {
                policy: eviction.policy,
                admission: eviction.admission,
                written_today: eviction.written_today,
                daily_write_budget: eviction.daily_write_budget,
                evictions: eviction.evictions,
                refused: eviction.refused,
                refused_by: eviction
                    .refused_by
                    .into_iter()
                    .map(|(by, count)| (by.to_owned(), count))
                    .collect(),
                hits: eviction.hits,
                misses: eviction.misses,
                figures: eviction
                    .figures
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
            },
        }
    }

    fn blobs(&self, query: &Query) -> Outcome {
        let bad = |error: &dyn std::fmt::Display| fail(StatusCode::BAD_REQUEST, error);
        let after = query
            .get("after")
            .map(|text| text.parse::<Digest>())
            .transpose()
            .map_err(|error| bad(&error))?;
        let limit = match query.get("limit").map(|text| text.parse::<usize>()) {
            None => MAX_PAGE_BLOBS,
            Some(Ok(limit @ 1..=MAX_PAGE_BLOBS)) => limit,
            Some(_) => return Err(bad(&format!("limit must be 1 to {MAX_PAGE_BLOBS}"))),
        };
        let entries = self.cache.list(after, limit);
        let next = (entries.len() == limit)
            .then(|| entries.last().map(|entry| entry.digest))
            .flatten();
        let blobs = entries.into_iter().map(|entry| Blob {
            digest: entry.digest,
            size: entry.size,
            media_type: entry.media_type.map(|it| it.to_string()),
            accessed: entry.accessed,
            pinned: entry.pinned,
            images: Vec::new(),
        });
        Ok(json(&Blobs {
            blobs: blobs.collect(),
            next,
        }))
    }

    fn pins(&self) -> Pins {
        let pins = self.cache.pins().into_iter();
        Pins {
            pins: pins
                .map(|(image, digests)| Pin {
                    image,
                    digests,
                    missing: None,
                })
                .collect(),
        }
    }

    async fn pin(&self, reference: &Reference) -> Outcome {
        let digests = self.proxy.cached(reference).await.map_err(|why| {
            fail(
                StatusCode::NOT_FOUND,
                format!("{why}; `pierhead cache warm --pin {reference}` pulls and pins it"),
            )
        })?;
        // An image of several platforms is rarely complete: one complete platform is enough.
        let is_complete = digests
            .platforms
            .iter()
            .any(|platform| platform.is_complete);
        let digests = digests.digests;
        let image = reference.to_string();
        self.cache
            .pin(&image, digests.clone())
            .await
            .map_err(|error| fail(StatusCode::INSUFFICIENT_STORAGE, pin_error(error)))?;
        tracing::info!(%image, blobs = digests.len(), "image pinned");
        let missing = || {
            let missing = digests.iter().filter(|it| !self.cache.is_stored(it));
            u64::try_from(missing.count()).unwrap_or(u64::MAX)
        };
        Ok(json(&Pin {
            image,
            missing: (!is_complete).then(missing),
            digests,
        }))
    }

    async fn unpin(&self, reference: &Reference) -> Outcome {
        let image = reference.to_string();
        match self.cache.unpin(&image).await {
            Ok(true) => {
                tracing::info!(%image, "image unpinned");
                Ok(json(&Pin {
                    image,
                    digests: Vec::new(),
                    missing: None,
                }))
            }
            Ok(false) => Err(fail(
                StatusCode::NOT_FOUND,
                format!(
                    "{image} is not pinned: `pierhead cache ls --pins` lists the pinned images"
                ),
            )),
            Err(error) => Err(fail(StatusCode::INTERNAL_SERVER_ERROR, error)),
        }
    }

    fn tier(&self) -> Outcome {
        let (Some(stat), Some(limit)) = (self.cache.tier(), &self.tier_limit) else {
            return Err(fail(
                StatusCode::NOT_FOUND,
                "there is no fast tier: see tier.kind in the configuration, and the log of the last start",
            ));
        };
        let fast = stat.fast;
        Ok(json(&TierStat {
            class: stat.class.to_owned(),
            capacity: stat.capacity,
            free: fast.free,
            used: fast.used,
            limit: fast.limit,
            ceiling: limit.ceiling(),
            most: fast.max_limit,
            blobs: fast.blobs,
            hot: fast.hot,
            hot_used: fast.hot_used,
            queue: fast.dirty_blobs,
            dirty: fast.dirty_bytes,
            staged: fast.staged,
            written_back: fast.written_back,
            moved: fast.moved,
            hits: fast.hits,
            hot_hits: fast.hot_hits,
            disk_hits: fast.disk_hits,
            damaged: fast.damaged,
            failed: fast.failed,
        }))
    }

    async fn set_tier_limit(&self, wanted: &TierLimitChange) -> Outcome {
        if let Some(limit) = &self.tier_limit {
            limit.set_ceiling(wanted.limit).await;
        }
        self.tier()
    }
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Box<AdminResponse>> {
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES).collect();
    let body = tokio::time::timeout(BODY_TIMEOUT, body).await;
    let bytes: Bytes = body
        .map_err(|_| {
            fail(
                StatusCode::REQUEST_TIMEOUT,
                "the request body did not arrive in time",
            )
        })?
        .map_err(|error| fail(StatusCode::BAD_REQUEST, error))?
        .to_bytes();
    serde_json::from_slice(&bytes).map_err(|error| {
        fail(
            StatusCode::BAD_REQUEST,
            format!("the request body is invalid: {error}"),
        )
    })
}

/// The parameters in the query of a request, percent-decoded.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(request: &Request<Incoming>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        Self(
            form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    fn reference(&self) -> Result<Reference, Box<AdminResponse>> {
        let text = self
            .get("image")
            .ok_or_else(|| fail(StatusCode::BAD_REQUEST, "?image=REFERENCE is missing"))?;
        text.parse()
            .map_err(|error| fail(StatusCode::BAD_REQUEST, format!("{text:?}: {error}")))
    }
}
