//! Images that are being pulled: offered to the library once all of their blobs are here.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pierhead_host::ClientKey;
use pierhead_oci::Digest;

/// Maximum number of images that are looked for. Beyond it, the client with most images loses its oldest.
const MAX: usize = 256;
/// Whoever pulls so slowly asks again.
const PATIENCE: Duration = Duration::from_secs(3600);

/// See the head of this module.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<Awaited>);

#[derive(Default)]
struct Awaited {
    images: HashMap<Digest, Arrival>,
    is_watched: bool,
}

pub(crate) struct Arrival {
    /// Who pulls it. Its indexing counts for this client.
    pub(crate) client: ClientKey,
    pub(crate) repository: String,
    pub(crate) blobs: Vec<Digest>,
    pub(crate) since: Instant,
}

impl Arrivals {
    fn awaited(&self) -> MutexGuard<'_, Awaited> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, digest: Digest, arrival: Arrival) {
        let mut awaited = self.awaited();
        if awaited.images.len() >= MAX {
            let mut clients: HashMap<ClientKey, usize> = HashMap::new();
            for it in awaited.images.values() {
                *clients.entry(it.client).or_default() += 1;
            }
            let most = clients.values().copied().max();
            let images = awaited.images.iter();
            let leaving = images
                .filter(|(_, it)| clients.get(&it.client).copied() == most)
                .min_by_key(|(_, it)| it.since)
                .map(|(digest, _)| *digest);
            if let Some(leaving) = leaving {
                awaited.images.remove(&leaving);
            }
        }
        awaited.images.insert(digest, arrival);
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.awaited().images.contains_key(digest)
    }

    /// Whether the caller has to watch from now on: nobody else does.
    pub(crate) fn begin_watch(&self) -> bool {
        !std::mem::replace(&mut self.awaited().is_watched, true)
    }

    /// Takes the images whose blobs are all at hand, and forgets those that are too slow. Also returns whether no image is left, which
    /// ends the watch.
    pub(crate) fn take_complete(
        &self,
        is_at_hand: impl Fn(&Digest) -> bool,
    ) -> (Vec<(Digest, Arrival)>, bool) {
        let mut awaited = self.awaited();
        let complete = awaited
            .images
            .extract_if(|_, arrival| arrival.blobs.iter().all(&is_at_hand))
            .collect();
        awaited
            .images
            .retain(|_, arrival| arrival.since.elapsed() < PATIENCE);
        awaited.is_watched = !awaited.images.is_empty();
        (complete, !awaited.is_watched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_many_arrivals_loses_its_own() {
        let arrivals = Arrivals::default();
        let client = |nth: u8| ClientKey::of([10, 0, 0, nth].into());
        let digest = |text: String| {
            pierhead_oci::Digest::of(pierhead_oci::Algorithm::Sha256, text.as_bytes())
        };
        let arrival = |nth| Arrival {
            client: client(nth),
            repository: String::new(),
            blobs: Vec::new(),
            since: Instant::now(),
        };
        arrivals.add(digest("first".into()), arrival(2));
        for number in 0..2 * MAX {
            arrivals.add(digest(number.to_string()), arrival(1));
        }
        let awaited = arrivals.awaited();
        assert_eq!(awaited.images.len(), MAX);
        assert!(awaited.images.contains_key(&digest("first".into())));
    }
}
