//! The size of a blob that the cache lacks.

use std::sync::Arc;

use crate::context::Inner;
use crate::error::Error;
use crate::pull::blob_request::Wanted;

impl Inner {
    /// Whether the cache has that blob, or is getting it from the registry that is meant.
    pub(crate) fn is_at_hand(&self, wanted: &Wanted) -> bool {
        self.cache.contains(&wanted.digest)
            && self.may_share(&wanted.registry, &wanted.digest)
            && !self
                .leads
                .is_led_by_another(&wanted.digest, &wanted.registry)
    }

    /// The size of a blob that the cache lacks, from its upstream: one question however many ask.
    /// Cancel safe: a question that was asked goes on.
    pub(crate) async fn size_upstream(
        self: &Arc<Self>,
        wanted: &Wanted,
    ) -> Result<Option<u64>, Error> {
        let subject = wanted.subject();
        if let Some(error) = self.trust.recent.error(&subject) {
            return Err(error.into());
        }
        let flight = self.trust.sizes.join(&subject, || {
            // A registry that answers nothing holds a socket for each question. It takes no turn: it is short, and
            // would wait for downloads that take minutes.
            let place = self.limits.queue(&wanted.client)?;
            let (inner, wanted) = (self.clone(), wanted.clone());
            Ok(async move {
                let _place = place;
                inner.ask_size(&wanted).await
            })
        });
        flight?.answer().await.ok_or(Error::Internal)?
    }

    async fn ask_size(&self, wanted: &Wanted) -> Result<Option<u64>, Error> {
        match self
            .client
            .blob_size(&wanted.registry, &wanted.repository, &wanted.digest)
            .await
        {
            Ok(size) => {
                self.trust.recent.answered(&wanted.registry);
                Ok(size)
            }
            Err(error) => {
                self.trust
                    .recent
                    .failed(&wanted.registry, wanted.subject(), &error);
                Err(error.into())
            }
        }
    }
}
