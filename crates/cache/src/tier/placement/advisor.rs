//! What is known of the images that are being pulled, and what the rules make of it.

use std::collections::{HashMap, VecDeque};

use pierhead_oci::{Body, Digest, Manifest};

use super::{
    BlobFacts, Decision, Destination, FetchRate, LayerAware, LayerProgress, Placement, Speed,
    TierSpeeds,
};

/// Images that are remembered, the latest, and layers of each: together some megabytes.
const MAX_IMAGES: usize = 256;
const MAX_LAYERS: usize = 256;
/// Blobs whose requests are counted; when there are more, those that were asked for once are forgotten, or all.
const MAX_COUNTED: usize = 64 << 10;
/// After so many requests for each blob that is counted, and at least so many, all counts are halved: what was in demand once
/// does not stay for that.
const AGE: usize = 8;
const MIN_AGE: usize = 1024;

/// See the head of this module. No I/O.
#[derive(Default)]
pub(crate) struct Advisor {
    placement: Placement,
    speeds: TierSpeeds,
    lass: LayerAware,
    /// By manifest.
    images: HashMap<Digest, Image>,
    /// Of `images`, the oldest first.
    order: VecDeque<Digest>,
    /// The latest image that names a blob.
    named: HashMap<Digest, Digest>,
    requests: HashMap<Digest, u32>,
    /// Requests since all counts were halved.
    since: usize,
}

struct Image {
    /// The lowest first, with their sizes as claimed.
    layers: Vec<(Digest, u64)>,
    config: (Digest, u64),
}

impl Image {
    /// Which layer a blob of it is, unless it is its config; and its size.
    fn blob(&self, digest: &Digest) -> (Option<usize>, u64) {
        let index = self.layers.iter().position(|(layer, _)| layer == digest);
        (
            index,
            index.map_or(self.config.1, |index| self.layers[index].1),
        )
    }
}

impl Advisor {
    pub(crate) fn new(placement: Placement) -> Self {
        Self {
            placement,
            ..Self::default()
        }
    }

    /// Notes an image whose blobs may be requested soon.
    pub(crate) fn enter(&mut self, digest: Digest, manifest: &Manifest) {
        let Body::Image { config, layers, .. } = &manifest.body else {
            return;
        };
        if layers.len() > MAX_LAYERS {
            return;
        }
        let image = Image {
            layers: layers.iter().map(|it| (it.digest, it.size)).collect(),
            config: (config.digest, config.size),
        };
        let parts = image.layers.iter().map(|(layer, _)| *layer);
        for part in parts.chain([config.digest]) {
            self.named.insert(part, digest);
        }
        if self.images.insert(digest, image).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > MAX_IMAGES
            && let Some(oldest) = self.order.pop_front()
        {
            self.images.remove(&oldest);
            self.named.retain(|_, image| *image != oldest);
        }
    }

    /// So many bytes a second came while a fill was under way, of all fills together.
    pub(crate) fn arrived(&mut self, rate: f64) {
        if rate.is_finite() && rate > 0.0 {
            let link = self
                .lass
                .pace
                .map_or(rate, |pace| (3.0 * pace.link + rate) / 4.0);
            let disk = self.speeds.disk;
            self.lass.pace = Some(FetchRate { link, disk });
        }
    }

    /// How the tiers serve, as measured.
    pub(crate) fn measured(&mut self, speeds: TierSpeeds) {
        self.speeds = speeds;
        if let Some(pace) = &mut self.lass.pace {
            pace.disk = speeds.disk;
        }
    }

    /// One more request for a blob: says how many that makes.
    pub(crate) fn request(&mut self, digest: &Digest) -> u32 {
        self.since += 1;
        let full = self.requests.len() >= MAX_COUNTED && !self.requests.contains_key(digest);
        if full || self.since > MIN_AGE.max(AGE * self.requests.len()) {
            self.since = 0;
            self.requests.retain(|_, count| {
                *count /= 2;
                *count > 0
            });
            if self.requests.len() >= MAX_COUNTED {
                self.requests.clear();
            }
        }
        let count = self.requests.entry(*digest).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }

    /// The size of a blob that an image names, as claimed.
    pub(crate) fn expected(&self, digest: &Digest) -> Option<u64> {
        let image = self.images.get(self.named.get(digest)?)?;
        Some(image.blob(digest).1)
    }

    /// What speaks for a fill. `progress` says how far a layer is; `floor` is what would have to leave for as many bytes as
    /// are [expected](Self::expected). `None` of what no image names.
    pub(crate) fn decide(
        &self,
        digest: &Digest,
        sharing: u32,
        mut progress: impl FnMut(&Digest, u64) -> LayerProgress,
        floor: f64,
    ) -> Option<Decision> {
        let image = self.images.get(self.named.get(digest)?)?;
        let (index, bytes) = image.blob(digest);
        let arriving = index.map_or_else(
            || {
                let pace = self.lass.pace?;
                pace.is_small(bytes).then_some(Destination::Fast)
            },
            |index| {
                let layers: Vec<_> = image
                    .layers
                    .iter()
                    .map(|(layer, size)| progress(layer, *size))
                    .collect();
                Some(self.lass.place(&layers, index))
            },
        );
        let facts = BlobFacts {
            bytes,
            demand: 1.0 + f64::from(self.requests.get(digest).copied().unwrap_or(0)),
            sharing,
            arriving,
            floor,
        };
        Some(self.placement.decide(&self.speeds, &facts))
    }

    /// The rank of the hot chunks of a blob, `bytes` in so many runs: each run is found anew on a disk.
    pub(crate) fn hot_priority(
        &self,
        digest: &Digest,
        (runs, bytes): (usize, u64),
        sharing: u32,
    ) -> f64 {
        let runs = u32::try_from(runs).unwrap_or(u32::MAX);
        let found = |speed: Speed| Speed {
            latency: speed.latency * f64::from(runs),
            ..speed
        };
        let scattered = TierSpeeds {
            disk: found(self.speeds.disk),
            fast: found(self.speeds.fast),
        };
        let facts = self.facts(digest, bytes, sharing);
        self.placement.priority(&scattered, &facts)
    }

    /// The rank of a blob of `bytes` that is there.
    pub(crate) fn priority(&self, digest: &Digest, bytes: u64, sharing: u32) -> f64 {
        let facts = self.facts(digest, bytes, sharing);
        self.placement.priority(&self.speeds, &facts)
    }

    /// Of what is there, and does not arrive.
    fn facts(&self, digest: &Digest, bytes: u64, sharing: u32) -> BlobFacts {
        BlobFacts {
            bytes,
            demand: 1.0 + f64::from(self.requests.get(digest).copied().unwrap_or(0)),
            sharing,
            arriving: None,
            floor: 0.0,
        }
    }
}
