//! A fake OCI registry in the test process, into which tests inject faults at run time. The
//! registry implements HTTP/1.1 itself, because a correct server library cannot produce the faults.
//! The registry listens on three loopback ports: for the registry itself, for the token server, and
//! for the CDN to which it may redirect requests for blobs.

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

/// A running fake registry. Dropping this value closes all ports and connections of the registry.
pub struct FakeRegistry {
    shared: Arc<Shared>,
    main: Listener,
    tokens: Listener,
    cdn: Listener,
}

impl FakeRegistry {
    /// Starts an empty registry over plain HTTP without authentication.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Returns the options for starting a registry.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the address of the registry.
    pub fn addr(&self) -> SocketAddr {
        self.main.addr()
    }

    /// Returns the URL of the registry: `http://127.0.0.1:port`, or `https://…` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.shared.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{}", self.addr())
    }

    /// Returns the address of the token server.
    pub fn token_addr(&self) -> SocketAddr {
        self.tokens.addr()
    }

    /// Returns the address of the CDN, to which the registry redirects requests for blobs.
    pub fn cdn_addr(&self) -> SocketAddr {
        self.cdn.addr()
    }

    /// Returns the certificate of the authority that signed the TLS certificate of this registry,
    /// as PEM.
    ///
    /// # Panics
    /// Panics if the registry uses plain HTTP.
    pub fn ca_pem(&self) -> &str {
        self.shared
            .tls
            .as_ref()
            .expect("started with tls()")
            .ca_pem()
    }

    /// Closes all three ports and every connection. After this call, connections are refused. The
    /// ports stay reserved for [`restart`](Self::restart).
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

    /// Stops only the token server of the registry.
    pub async fn stop_tokens(&self) {
        self.tokens.stop().await;
    }

    /// Stops only the CDN.
    pub async fn stop_cdn(&self) {
        self.cdn.stop().await;
    }

    /// Changes the settings for later requests.
    pub fn configure(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.shared.settings.lock());
    }

    /// Invalidates every issued token, as if all had expired.
    pub fn expire_tokens(&self) {
        self.shared.issued.lock().clear();
    }

    /// Adds all blobs and documents of an image to a repository, and points `tag` to its root.
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

    /// Adds one blob to a repository. Returns its digest.
    pub fn put_blob(&self, repository: &str, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = crate::images::digest_of(&bytes);
        self.shared
            .store
            .lock()
            .put_blob(repository, digest, Content::memory(bytes));
        digest
    }

    /// Adds one blob to a repository under any digest, even a wrong one.
    pub fn put_blob_as(&self, repository: &str, digest: Digest, bytes: impl Into<Bytes>) {
        self.shared
            .store
            .lock()
            .put_blob(repository, digest, Content::memory(bytes.into()));
    }

    /// Adds a blob whose bytes stay in a file and are read while they are served.
    pub fn put_blob_file(&self, repository: &str, digest: Digest, path: &Path) {
        let content =
            Content::file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.shared
            .store
            .lock()
            .put_blob(repository, digest, content);
    }

    /// Adds one manifest to a repository. The manifest may be invalid.
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

    /// Adds a document under any digest, even a wrong one.
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

    /// Points a tag to a manifest, which may be missing.
    pub fn tag(&self, repository: &str, tag: &str, digest: Digest) {
        self.shared.store.lock().tag(repository, tag, digest);
    }

    /// Removes a tag from a repository.
    pub fn untag(&self, repository: &str, tag: &str) {
        self.shared.store.lock().untag(repository, tag);
    }

    /// Removes a blob or manifest from a repository.
    pub fn remove(&self, repository: &str, digest: &Digest) {
        self.shared.store.lock().remove(repository, digest);
    }

    /// Injects a fault in addition to others:
    /// `registry.inject(Fault::Status(503).on("/v2/*").times(2))`.
    pub fn inject(&self, rule: Rule) -> Injected {
        self.shared.rules.add(rule)
    }

    /// Removes all faults that tests have injected.
    pub fn clear_faults(&self) {
        self.shared.rules.clear();
    }

    /// Returns all requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.log.requests()
    }

    /// Clears the list of recorded requests.
    pub fn clear_requests(&self) {
        self.shared.log.clear();
    }

    /// Returns the number of requests so far for which `fits` is true.
    pub fn count(&self, fits: impl FnMut(&RecordedRequest) -> bool) -> usize {
        let mut fits = fits;
        self.requests()
            .iter()
            .filter(|request| fits(request))
            .count()
    }

    /// Returns the number of GET requests for this blob or manifest at the registry itself,
    /// including requests that a fault affected.
    pub fn gets_of(&self, digest: &Digest) -> usize {
        self.count_of("GET", digest)
    }

    /// Returns the number of HEAD requests for this blob or manifest at the registry itself.
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

    /// Waits until `enough` returns true for the list of all requests that the registry has
    /// received.
    ///
    /// # Panics
    /// Panics if `enough` still returns false after 30 seconds.
    pub async fn wait_for(&self, enough: impl FnMut(&[RecordedRequest]) -> bool) {
        self.shared.log.wait_for(enough).await;
    }

    /// Returns the maximum number of blob bodies that were sent at the same time.
    pub fn peak_blobs_in_flight(&self) -> usize {
        self.shared.peak_blobs_in_flight.load(Ordering::SeqCst)
    }
}
