//! Answers HEAD requests for blobs: whether the cache has the blob, and otherwise the size of the
//! blob from the upstream.

use std::sync::Arc;

use crate::context::RequestContext;
use crate::error::Error;
use crate::pull::blob_request::BlobRequest;

impl RequestContext {
    /// Whether the cache has this blob from this registry, or a fill from this registry runs.
    pub(crate) fn is_available(&self, request: &BlobRequest) -> bool {
        self.cache.contains(&request.digest)
            && self.may_share(&request.registry, &request.digest)
            && !self
                .fill_owners
                .is_owned_by_another(&request.digest, &request.registry)
    }

    /// Returns the size of a blob that the cache lacks. Concurrent requests share one upstream
    /// request. Cancel safe: a running upstream request continues.
    pub(crate) async fn size_upstream(
        self: &Arc<Self>,
        request: &BlobRequest,
    ) -> Result<Option<u64>, Error> {
        let subject = request.subject();
        if let Some(error) = self.generation.negative_cache.error(&subject) {
            return Err(error.into());
        }
        let pending = self.generation.size_requests.join(
            (&subject, self.holder(&request.client, &request.registry)),
            || {
                // The upstream request counts as a request of the client, because each request to a
                // registry that does not respond holds a socket. The upstream request takes no download
                // slot, because a short request must not wait for downloads that take minutes.
                let permit = self.limits.upstream_permit(&request.client)?;
                let (context, request) = (self.clone(), request.clone());
                Ok(async move {
                    let _permit = permit;
                    context.request_size(&request).await
                })
            },
        );
        pending?.result().await?
    }

    async fn request_size(&self, request: &BlobRequest) -> Result<Option<u64>, Error> {
        match self
            .client
            .blob_size(&request.registry, &request.repository, &request.digest)
            .await
        {
            Ok(size) => {
                self.generation
                    .negative_cache
                    .record_response(&request.registry);
                Ok(size)
            }
            Err(error) => {
                self.generation.negative_cache.record_failure(
                    &request.registry,
                    request.subject(),
                    &error,
                );
                Err(error.into())
            }
        }
    }
}
