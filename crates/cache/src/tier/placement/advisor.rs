//! Collects the facts that the placement rules of the fast tier use: images that are being pulled,
//! requests, and measured speeds.

use std::collections::{HashMap, VecDeque};

use pierhead_oci::{Body, Digest, Manifest};

use super::{
    BlobFacts, Decision, Destination, FetchRate, LayerAware, LayerProgress, Placement, Speed,
    TierSpeeds,
};

/// Maximum number of images that the placement rules remember.
const MAX_IMAGES: usize = 256;
/// Maximum number of layers per image that the placement rules remember. 256 images with 256 layers
/// each take a few megabytes of memory.
const MAX_LAYERS: usize = 256;
/// Maximum number of blobs whose requests are counted. At the limit, the counts of blobs with one
/// request are dropped. If no blob has only one request, all counts are dropped.
const MAX_COUNTED: usize = 64 << 10;
/// Average number of requests per counted blob at which all counts are halved, so that blobs lose
/// their rank when clients no longer request them.
const REQUESTS_PER_BLOB: usize = 8;
/// Minimum number of counted requests after which all counts are halved.
const MIN_REQUESTS: usize = 1024;

/// The facts for the placement rules, which the documentation of this module lists. The methods
/// make no I/O.
#[derive(Default)]
pub(crate) struct Advisor {
    placement: Placement,
    speeds: TierSpeeds,
    layer_aware: LayerAware,
    /// The known images by the digests of their manifests.
    images: HashMap<Digest, Image>,
    /// Keys of `images`, with the oldest image first.
    order: VecDeque<Digest>,
    /// For each blob, the latest image that contains the blob.
    image_of: HashMap<Digest, Digest>,
    requests: HashMap<Digest, u32>,
    /// Number of requests since all counts were last halved.
    requests_since_halving: usize,
}

struct Image {
    /// Digests and sizes of the layers, as the manifest states them. The lowest layer is first.
    layers: Vec<(Digest, u64)>,
    config: (Digest, u64),
}

impl Image {
    /// Returns the index of a blob among the layers (`None` for the config), and the size of the
    /// blob.
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

    /// Remembers an image, because its blobs may be requested soon.
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
            self.image_of.insert(part, digest);
        }
        if self.images.insert(digest, image).is_none() {
            self.order.push_back(digest);
        }
        if self.order.len() > MAX_IMAGES
            && let Some(oldest) = self.order.pop_front()
        {
            self.images.remove(&oldest);
            self.image_of.retain(|_, image| *image != oldest);
        }
    }

    /// Adds a measurement of the link. `rate` is the bytes per second of all fills together while
    /// one fill was running.
    pub(crate) fn arrived(&mut self, rate: f64) {
        if rate.is_finite() && rate > 0.0 {
            let link = self
                .layer_aware
                .pace
                .map_or(rate, |pace| (3.0 * pace.link + rate) / 4.0);
            let disk = self.speeds.disk;
            self.layer_aware.pace = Some(FetchRate { link, disk });
        }
    }

    /// Sets the measured speeds of the tiers.
    pub(crate) fn measured(&mut self, speeds: TierSpeeds) {
        self.speeds = speeds;
        if let Some(pace) = &mut self.layer_aware.pace {
            pace.disk = speeds.disk;
        }
    }

    /// Counts a request for a blob. Returns the number of requests for this blob.
    pub(crate) fn request(&mut self, digest: &Digest) -> u32 {
        self.requests_since_halving += 1;
        let full = self.requests.len() >= MAX_COUNTED && !self.requests.contains_key(digest);
        if full
            || self.requests_since_halving
                > MIN_REQUESTS.max(REQUESTS_PER_BLOB * self.requests.len())
        {
            self.requests_since_halving = 0;
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

    /// Returns the size of a blob, as the manifest of its image states it.
    pub(crate) fn expected(&self, digest: &Digest) -> Option<u64> {
        let image = self.images.get(self.image_of.get(digest)?)?;
        Some(image.blob(digest).1)
    }

    /// Decides the placement of a fill. `progress` returns the progress of a layer. `floor` is the
    /// highest priority of the blobs that would be evicted for the [expected](Self::expected)
    /// bytes. Returns `None` for a blob of an unknown image.
    pub(crate) fn decide(
        &self,
        digest: &Digest,
        sharing: u32,
        mut progress: impl FnMut(&Digest, u64) -> LayerProgress,
        floor: f64,
    ) -> Option<Decision> {
        let image = self.images.get(self.image_of.get(digest)?)?;
        let (index, bytes) = image.blob(digest);
        let arriving = index.map_or_else(
            || {
                let pace = self.layer_aware.pace?;
                pace.is_small(bytes).then_some(Destination::Fast)
            },
            |index| {
                let layers: Vec<_> = image
                    .layers
                    .iter()
                    .map(|(layer, size)| progress(layer, *size))
                    .collect();
                Some(self.layer_aware.place(&layers, index))
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

    /// Returns the rank of the hot ranges of a blob. `runs` is the number of contiguous ranges. A
    /// disk needs one seek for each contiguous range.
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

    /// Returns the rank of a stored blob of `bytes` bytes.
    pub(crate) fn priority(&self, digest: &Digest, bytes: u64, sharing: u32) -> f64 {
        let facts = self.facts(digest, bytes, sharing);
        self.placement.priority(&self.speeds, &facts)
    }

    /// Returns the facts about a stored blob.
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
