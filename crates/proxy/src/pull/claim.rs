//! Who gets a blob how: from the cache, by a fill under way, or as the one that fills it.

use std::sync::Arc;

use pierhead_cache::{BlobReader, Claim, Fill, StoredBlob};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::context::Inner;
use crate::error::Error;
use crate::limits::downloads::Turn;
use crate::limits::limit::Limit;
use crate::metrics::Outcome;
use crate::pull::blob_request::Wanted;
use crate::pull::fetch::{self, Passed};
use crate::pull::fill_owner::Lead;

/// Fills at once: each holds a staged file open while it waits for its turn at the upstream, and goes on
/// when its client has left.
const FILLS: u64 = 512;

/// What a claim found, or `None` when another registry is filling this digest: nobody who does not mean
/// that registry waits for it, or believes it.
pub(crate) async fn claim_of(inner: &Inner, wanted: &Wanted) -> Result<Option<Claimed>, Error> {
    let Wanted {
        registry, digest, ..
    } = wanted;
    let Some(lead) = inner.leads.enter(digest, registry) else {
        // Committed by the one before, maybe.
        let found = inner.cache.get(digest).await?;
        return Ok(found.map(Claimed::Object));
    };
    Ok(Some(
        match inner.cache.claim(digest, wanted.origin()).await? {
            Claim::Hit(object) => Claimed::Object(object),
            Claim::Follower(content) => {
                let offer = lead.offer(&wanted.client);
                Claimed::Follower(content, offer)
            }
            Claim::Leader(fill, content) => {
                lead.begin();
                Claimed::Leader(fill, content, lead)
            }
        },
    ))
}

/// As [`Claim`].
pub(crate) enum Claimed {
    Object(StoredBlob),
    /// With where to leave a turn for the fill, when it has none.
    Follower(BlobReader, Option<Sender<Turn>>),
    /// With what keeps other registries away until the fill has ended.
    Leader(Fill, BlobReader, Lead),
}

/// One claim; the fetch of a leader is a task of its own, and may have something to pass on. `None` as of [`claim_of`].
pub(crate) async fn claim(
    inner: &Arc<Inner>,
    wanted: &Wanted,
) -> Result<Option<(BlobReader, Outcome, Option<oneshot::Receiver<Passed>>)>, Error> {
    if !inner.cache.contains(&wanted.digest) && inner.cache.stat().fills >= FILLS {
        return Err(Limit::Fetches.into());
    }
    // Taken before it is known who leads: whoever follows a fill that has its turn gives it back at once.
    let ticket = match inner.cache.contains(&wanted.digest) {
        true => None,
        false => Some(inner.limits.queue(&wanted.client)?),
    };
    Ok(match claim_of(inner, wanted).await? {
        None => None,
        Some(Claimed::Object(_)) if !inner.may_share(&wanted.registry, &wanted.digest) => None,
        Some(Claimed::Follower(..))
            if inner.guest().is_some_and(|it| !it.is_clean(&wanted.digest)) =>
        {
            None
        }
        Some(Claimed::Object(object)) => Some((BlobReader::Stored(object), Outcome::Hit, None)),
        Some(Claimed::Follower(content, offer)) => {
            // Whoever has no place to wait in waits along.
            if let Some(offer) = offer
                && let Ok(ticket) = ticket.map_or_else(|| inner.limits.queue(&wanted.client), Ok)
            {
                let (inner, wanted) = (inner.clone(), wanted.clone());
                let readers = content.readers();
                tokio::spawn(async move {
                    fetch::offer(&inner, ticket, (&wanted, readers), offer).await;
                });
            }
            Some((content, Outcome::Miss, None))
        }
        Some(Claimed::Leader(mut fill, content, lead)) => {
            let clean = match inner.guest() {
                Some(guest) => Some(guest.begin(&mut fill).await?),
                None => None,
            };
            let ticket = match ticket {
                Some(ticket) => ticket,
                // Evicted, or failed, since we looked. The fill is given up when there is no place.
                None => inner.limits.queue(&wanted.client)?,
            };
            let passed = fetch::start(inner.clone(), wanted.clone(), fill, (lead, clean), ticket);
            Some((content, Outcome::Miss, Some(passed)))
        }
    })
}
