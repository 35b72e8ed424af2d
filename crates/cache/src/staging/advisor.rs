//! What is known of the images that are being pulled, and what the rules make of it.

use std::collections::{HashMap, VecDeque};

use pierhead_oci::{Body, Digest, Manifest};
use serde::Deserialize;

use super::{
    Facts, HotImageFiles, LayerAware, Pace, Placement, Progress, Speed, Start, Step, Temperature,
    Value, Verdict, Weights,
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
    weights: Weights,
    value: Value,
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
    temperatures: Option<Vec<Temperature>>,
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

/// Of an image's config.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    history: Vec<Entry>,
    config: Option<Settings>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    created_by: String,
    #[serde(default)]
    empty_layer: bool,
}

#[derive(Default, Deserialize)]
struct Settings {
    #[serde(rename = "Entrypoint")]
    entrypoint: Option<Vec<String>>,
    #[serde(rename = "Cmd")]
    command: Option<Vec<String>>,
    #[serde(rename = "Env")]
    environment: Option<Vec<String>>,
}

impl Advisor {
    pub(crate) fn new(weights: Weights) -> Self {
        Self {
            weights,
            ..Self::default()
        }
    }

    /// An image whose parts may be asked for soon: says which config it has.
    pub(crate) fn enter(&mut self, digest: Digest, manifest: &Manifest) -> Option<Digest> {
        let Body::Image { config, layers, .. } = &manifest.body else {
            return None;
        };
        if layers.len() > MAX_LAYERS {
            return None;
        }
        let image = Image {
            layers: layers.iter().map(|it| (it.digest, it.size)).collect(),
            config: (config.digest, config.size),
            temperatures: None,
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
        Some(config.digest)
    }

    /// The config of an image that was entered. Of what is no config nothing is noted.
    pub(crate) fn configure(&mut self, config: &Digest, content: &[u8]) {
        let Some(image) = self
            .named
            .get(config)
            .and_then(|it| self.images.get_mut(it))
        else {
            return;
        };
        if image.config.0 != *config || image.temperatures.is_some() {
            return;
        }
        let Ok(document) = serde_json::from_slice::<Document>(content) else {
            return;
        };
        let made = document.history.into_iter().filter(|it| !it.empty_layer);
        let steps: Vec<_> = made
            .map(|Entry { created_by, .. }| Step { created_by })
            .take(MAX_LAYERS + 1)
            .collect();
        let settings = document.config.unwrap_or_default();
        let (entrypoint, command) = (settings.entrypoint, settings.command);
        let start = Start {
            arguments: entrypoint.into_iter().chain(command).flatten().collect(),
            environment: settings.environment.unwrap_or_default(),
        };
        image.temperatures = HotImageFiles.judge(image.layers.len(), &steps, &start);
    }

    /// So many bytes a second came while a fill was under way, of all fills together.
    pub(crate) fn arrived(&mut self, rate: f64) {
        if rate.is_finite() && rate > 0.0 {
            let link = self
                .lass
                .pace
                .map_or(rate, |pace| (3.0 * pace.link + rate) / 4.0);
            let disk = self.value.disk;
            self.lass.pace = Some(Pace { link, disk });
        }
    }

    /// How the tiers serve, as measured.
    pub(crate) fn measured(&mut self, value: Value) {
        self.value = value;
        if let Some(pace) = &mut self.lass.pace {
            pace.disk = value.disk;
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
    pub(crate) fn judge(
        &self,
        digest: &Digest,
        sharing: u32,
        mut progress: impl FnMut(&Digest, u64) -> Progress,
        floor: f64,
    ) -> Option<Verdict> {
        let image = self.images.get(self.named.get(digest)?)?;
        let (index, bytes) = image.blob(digest);
        let arriving = index.map_or_else(
            || {
                let pace = self.lass.pace?;
                pace.is_small(bytes).then_some(Placement::Fast)
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
        let temperature = index.and_then(|index| image.temperatures.as_ref()?.get(index).copied());
        let facts = Facts {
            bytes,
            demand: 1.0 + f64::from(self.requests.get(digest).copied().unwrap_or(0)),
            sharing,
            arriving,
            temperature,
            floor,
        };
        Some(self.weights.judge(&self.value, &facts))
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
        let scattered = Value {
            disk: found(self.value.disk),
            fast: found(self.value.fast),
        };
        let facts = self.facts(digest, bytes, sharing);
        self.weights.priority(&scattered, &facts)
    }

    /// The rank of a blob of `bytes` that is there.
    pub(crate) fn priority(&self, digest: &Digest, bytes: u64, sharing: u32) -> f64 {
        let facts = self.facts(digest, bytes, sharing);
        self.weights.priority(&self.value, &facts)
    }

    /// Of what is there, and does not arrive.
    fn facts(&self, digest: &Digest, bytes: u64, sharing: u32) -> Facts {
        Facts {
            bytes,
            demand: 1.0 + f64::from(self.requests.get(digest).copied().unwrap_or(0)),
            sharing,
            arriving: None::<Placement>,
            temperature: None,
            floor: 0.0,
        }
    }
}
