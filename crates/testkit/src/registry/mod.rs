//! An OCI registry inside the test's process, with faults that are set and taken back at run time.
//!
//! It speaks HTTP/1.1 by hand rather than through a server library: every fault is a thing that a
//! correct server cannot be made to do. It listens on three loopback ports: the registry itself, its
//! token server, and the "CDN" to which it may redirect blobs.

mod auth;
mod background;
mod body;
mod builder;
mod content;
mod fault;
mod layout;
mod listener;
mod log;
mod reply;
mod route;
mod settings;
mod shared;
mod store;
mod tls;
mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pierhead_oci::Digest;

use crate::images::Image;
use content::Content;
use listener::Listener;
use shared::Shared;

pub use background::Background;
pub use builder::Builder;
pub use fault::{Fault, Gate, Injected, Rule};
pub use log::{RecordedRequest, Role};
pub use settings::{Auth, RateLimit, Settings, TokenAuth};
pub use tls::Authority;

/// A running fake registry. Dropping it closes its ports and connections.
pub struct FakeRegistry {
    shared: Arc<Shared>,
    main: Listener,
    tokens: Listener,
    cdn: Listener,
}

impl FakeRegistry {
    /// Plain HTTP, open to everybody, empty.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// To say how it shall start.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Where the registry listens.
    pub fn addr(&self) -> SocketAddr {
        self.main.addr()
    }

    /// `http://127.0.0.1:port`, or `https://…` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.addr())
    }

    /// Where the token server listens.
    pub fn token_addr(&self) -> SocketAddr {
        self.tokens.addr()
    }

    /// Where redirected blobs are.
    pub fn cdn_addr(&self) -> SocketAddr {
        self.cdn.addr()
    }

    /// The certificate of the authority behind the TLS of this registry, as PEM.
    ///
    /// # Panics
    /// When it speaks plain HTTP.
    pub fn ca_pem(&self) -> &str {
        self.shared
            .tls
            .as_ref()
            .expect("started with tls()")
            .ca_pem()
    }

    /// Closes all three ports and every connection. From then on connections are refused; the ports
    /// stay reserved for [`restart`](Self::restart).
    pub async fn stop(&self) {
        self.main.stop().await;
        self.tokens.stop().await;
        self.cdn.stop().await;
    }

    /// Listens again on the same ports, with the same contents.
    pub async fn restart(&self) {
        self.main.start().await;
        self.tokens.start().await;
        self.cdn.start().await;
    }

    /// Closes the token server alone.
    pub async fn stop_tokens(&self) {
        self.tokens.stop().await;
    }

    /// Closes the CDN alone.
    pub async fn stop_cdn(&self) {
        self.cdn.stop().await;
    }

    /// Changes settings; requests that come from now on see them.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.shared.settings.lock());
    }

    /// Forgets every token that was issued, as if all had expired.
    pub fn expire_tokens(&self) {
        self.shared.issued.lock().clear();
    }

    /// Puts an image, all its blobs and manifests, into a repository and points `tag` at its root.
    pub fn push(&self, repository: &str, tag: &str, image: &Image) {
        let mut store = self.shared.store.lock();
        for blob in &image.blobs {
            store.put_blob(repository, blob.digest, Content::memory(blob.bytes.clone()));
        }
        for document in &image.documents {
            store.put_manifest(
                repository,
                document.digest,
                &document.media_type,
                document.bytes.clone(),
            );
        }
        store.tag(repository, tag, image.root);
    }

    /// Puts one blob.
    pub fn put_blob(&self, repository: &str, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = crate::images::digest_of(&bytes);
        self.shared
            .store
            .lock()
            .put_blob(repository, digest, Content::memory(bytes));
        digest
    }

    /// Puts one blob under a digest that need not be its own.
    pub fn put_blob_as(&self, repository: &str, digest: Digest, bytes: impl Into<Bytes>) {
        self.shared
            .store
            .lock()
            .put_blob(repository, digest, Content::memory(bytes.into()));
    }

    /// Puts a blob whose bytes stay in a file and are read as they are served.
    pub fn put_blob_file(&self, repository: &str, digest: Digest, path: &Path) {
        let content =
            Content::file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.shared
            .store
            .lock()
            .put_blob(repository, digest, content);
    }

    /// Puts one manifest, sensible or not.
    pub fn put_manifest(
        &self,
        repository: &str,
        media_type: &str,
        bytes: impl Into<Bytes>,
    ) -> Digest {
        let bytes = bytes.into();
        let digest = crate::images::digest_of(&bytes);
        self.shared
            .store
            .lock()
            .put_manifest(repository, digest, media_type, bytes);
        digest
    }

    /// Puts a document under a digest that need not be its own.
    pub fn put_manifest_as(
        &self,
        repository: &str,
        digest: Digest,
        media_type: &str,
        bytes: impl Into<Bytes>,
    ) {
        self.shared
            .store
            .lock()
            .put_manifest(repository, digest, media_type, bytes.into());
    }

    /// Points a tag at a manifest, which need not be there.
    pub fn tag(&self, repository: &str, tag: &str, digest: Digest) {
        self.shared.store.lock().tag(repository, tag, digest);
    }

    /// Takes a tag away.
    pub fn untag(&self, repository: &str, tag: &str) {
        self.shared.store.lock().untag(repository, tag);
    }

    /// Takes a blob or manifest away from a repository.
    pub fn remove(&self, repository: &str, digest: &Digest) {
        self.shared.store.lock().remove(repository, digest);
    }

    /// Sets a fault, beside those already set:
    /// `registry.inject(Fault::Status(503).on("/v2/*").times(2))`.
    pub fn inject(&self, rule: Rule) -> Injected {
        self.shared.rules.add(rule)
    }

    /// Takes all faults back.
    pub fn clear_faults(&self) {
        self.shared.rules.clear();
    }

    /// All requests so far, in the order in which their heads arrived.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.log.requests()
    }

    /// Forgets the requests so far.
    pub fn clear_requests(&self) {
        self.shared.log.clear();
    }

    /// How many requests so far fit.
    pub fn count(&self, fits: impl FnMut(&RecordedRequest) -> bool) -> usize {
        let mut fits = fits;
        self.requests()
            .iter()
            .filter(|request| fits(request))
            .count()
    }

    /// How many GETs of this blob or manifest reached the registry itself, those that a fault
    /// befell included.
    pub fn gets_of(&self, digest: &Digest) -> usize {
        self.count_of("GET", digest)
    }

    /// How many HEADs of this blob or manifest reached the registry itself.
    pub fn heads_of(&self, digest: &Digest) -> usize {
        self.count_of("HEAD", digest)
    }

    fn count_of(&self, method: &str, digest: &Digest) -> usize {
        let suffix = format!("/{digest}");
        self.count(|request| {
            request.role == Role::Registry
                && request.method == method
                && request.path.ends_with(&suffix)
        })
    }

    /// Returns as soon as the requests so far satisfy `enough`.
    ///
    /// # Panics
    /// After 30 seconds.
    pub async fn wait_for(&self, enough: impl FnMut(&[RecordedRequest]) -> bool) {
        self.shared.log.wait_for(enough).await;
    }

    /// The largest number of blob bodies that were on their way at the same time.
    pub fn peak_blobs_in_flight(&self) -> usize {
        self.shared.peak_blobs_in_flight.load(Ordering::SeqCst)
    }
}
