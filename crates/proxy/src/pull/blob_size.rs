//! The size of a blob that the cache lacks.

use std::sync::Arc;

use crate::context::RequestContext;
use crate::error::Error;
use crate::pull::blob_request::BlobRequest;

impl RequestContext {
    /// Whether the cache has that blob, or is getting it from the registry that is meant.
    pub(crate) fn is_at_hand(&self, request: &BlobRequest) -> bool {
        self.cache.contains(&request.digest)
            && self.may_share(&request.registry, &request.digest)
            && !self
                .fill_owners
                .is_owned_by_another(&request.digest, &request.registry)
    }

    /// The size of a blob that the cache lacks, from its upstream: one question however many ask.
    /// Cancel safe: a question that was asked goes on.
    pub(crate) async fn size_upstream(
        self: &Arc<Self>,
        request: &BlobRequest,
    ) -> Result<Option<u64>, Error> {
        let subject = request.subject();
        if let Some(error) = self.generation.negative_cache.error(&subject) {
            return Err(error.into());
        }
        let pending = self.generation.size_requests.join(&subject, || {
            // A registry that answers nothing holds a socket for each question. It takes no turn: it is short, and
            // would wait for downloads that take minutes.
            let place = self.limits.queue(&request.client)?;
            let (context, request) = (self.clone(), request.clone());
            Ok(async move {
                let _place = place;
                context.ask_size(&request).await
            })
        });
        pending?.answer().await.ok_or(Error::Internal)?
    }

    async fn ask_size(&self, request: &BlobRequest) -> Result<Option<u64>, Error> {
        match self
            .client
            .blob_size(&request.registry, &request.repository, &request.digest)
            .await
        {
            Ok(size) => {
                self.generation.negative_cache.answered(&request.registry);
                Ok(size)
            }
            Err(error) => {
                self.generation
                    .negative_cache
                    .failed(&request.registry, request.subject(), &error);
                Err(error.into())
            }
        }
    }
}
