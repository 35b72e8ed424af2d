//! The simulated repositories of a generated workload: the shared base images, the repositories
//! that build on them, and their releases.

use std::collections::{HashMap, VecDeque};

use super::random::{Random, Zipf, whole};
use super::{ObjectKind, WorkloadParameters};
use pierhead_eviction::building_blocks::hash::mix;

/// A blob with its key and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blob {
    pub(super) key: u64,
    pub(super) size: u64,
}

/// One version of a repository.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) manifest: Blob,
    pub(super) config: Blob,
    /// The layers, from the lowest to the highest.
    pub(super) layers: Vec<Blob>,
    pulled: bool,
}

impl Image {
    /// Returns the blobs that a pull requests after the manifest. A layer may occur twice.
    pub(super) fn blobs(&self) -> impl Iterator<Item = Blob> {
        std::iter::once(self.config).chain(self.layers.iter().copied())
    }
}

/// A base image: a distribution, or a language runtime on top of a distribution.
#[derive(Debug)]
struct Base {
    parent: Option<usize>,
    own: Vec<Blob>,
    layers: Vec<Blob>,
}

#[derive(Debug)]
struct Repository {
    base: usize,
    /// Number of layers of the newest version that belong to the base image.
    inherited: usize,
    /// Mean number of days between two releases.
    days: f64,
    /// The available versions, the newest first.
    versions: VecDeque<Image>,
}

/// All repositories, in their current versions.
#[derive(Debug)]
pub(super) struct Catalogue {
    parameters: WorkloadParameters,
    bases: Vec<Base>,
    repositories: Vec<Repository>,
    /// For each layer, the number of available and pulled images that contain it.
    shared: HashMap<u64, u32>,
    /// Number of blobs created so far. The key of a blob is a hash of its number and the seed.
    made: u64,
    salt: u64,
}

impl Catalogue {
    pub(super) fn new(parameters: &WorkloadParameters, seed: u64, random: &mut Random) -> Self {
        let mut catalogue = Self {
            parameters: parameters.clone(),
            bases: Vec::new(),
            repositories: Vec::new(),
            shared: HashMap::new(),
            made: 0,
            salt: mix(seed ^ 0x5a17),
        };
        let WorkloadParameters {
            distributions,
            runtimes,
            ..
        } = *parameters;
        let wanted = Zipf::new(distributions, 1.0);
        for index in 0..distributions + runtimes {
            let parent = (index >= distributions).then(|| wanted.draw(random));
            let count = if parent.is_some() { (1, 4) } else { (1, 3) };
            let mut own: Vec<Blob> = (0..random.within(count.0, count.1))
                .map(|_| catalogue.layer(random))
                .collect();
            if parent.is_none() {
                let (low, high) = parameters.root_bytes;
                let size = random.log_uniform(low, high);
                own[0] = catalogue.blob(ObjectKind::Layer, size);
            }
            catalogue.bases.push(Base {
                parent,
                own,
                layers: Vec::new(),
            });
            catalogue.stack(index);
        }
        let wanted = Zipf::new(runtimes, 1.0);
        for _ in 0..parameters.repositories {
            let base = distributions + wanted.draw(random);
            let (low, high) = parameters.own_layers;
            let own = whole(random.log_uniform(low as f64, high as f64 + 1.0)).min(high);
            let mut layers = catalogue.bases[base].layers.clone();
            let inherited = layers.len();
            for _ in 0..own {
                layers.push(catalogue.layer(random));
            }
            let (low, high) = parameters.release_days;
            let days = random.log_uniform(low, high);
            let image = catalogue.image(layers, random);
            catalogue.repositories.push(Repository {
                base,
                inherited,
                days,
                versions: VecDeque::from([image]),
            });
        }
        catalogue
    }

    fn blob(&mut self, kind: ObjectKind, size: f64) -> Blob {
        self.made += 1;
        Blob {
            key: kind.mark(mix(self.salt.wrapping_add(self.made))),
            size: whole(size.max(1.0)) as u64,
        }
    }

    fn layer(&mut self, random: &mut Random) -> Blob {
        if random.chance(self.parameters.empty) {
            return Blob {
                key: ObjectKind::Layer.mark(mix(self.salt)),
                size: EMPTY_BYTES,
            };
        }
        let size = random.quantile(&self.parameters.layer_bytes);
        self.blob(ObjectKind::Layer, size)
    }

    /// Returns the layer that a repeated build step creates: a layer with another digest and about
    /// the same size.
    fn rebuilt(&mut self, layer: Blob, random: &mut Random) -> Blob {
        if layer.size == EMPTY_BYTES {
            return layer;
        }
        let size = layer.size as f64 * random.log_uniform(0.9, 1.1);
        self.blob(ObjectKind::Layer, size.max(EMPTY_BYTES as f64 + 1.0))
    }

    fn image(&mut self, layers: Vec<Blob>, random: &mut Random) -> Image {
        let (manifest, config) = (self.parameters.manifest_bytes, self.parameters.config_bytes);
        let (manifest, config) = (
            random.log_uniform(manifest.0, manifest.1),
            random.log_uniform(config.0, config.1),
        );
        Image {
            manifest: self.blob(ObjectKind::Manifest, manifest),
            config: self.blob(ObjectKind::Config, config),
            layers,
            pulled: false,
        }
    }

    fn stack(&mut self, base: usize) {
        let parent = self.bases[base].parent;
        let mut layers = parent.map_or_else(Vec::new, |at| self.bases[at].layers.clone());
        layers.extend_from_slice(&self.bases[base].own);
        self.bases[base].layers = layers;
    }

    pub(super) fn bases(&self) -> usize {
        self.bases.len()
    }

    /// Returns the mean number of days between two releases of a repository.
    pub(super) fn days(&self, repository: usize) -> f64 {
        self.repositories[repository].days
    }

    /// Replaces a base image. A repository uses the new base image from its next release on.
    pub(super) fn release_base(&mut self, base: usize, random: &mut Random) {
        let own = std::mem::take(&mut self.bases[base].own);
        self.bases[base].own = own
            .into_iter()
            .map(|layer| self.rebuilt(layer, random))
            .collect();
        self.stack(base);
    }

    /// Adds a version with new upper layers; if the base image changed, all layers are new. Also
    /// deletes the oldest version.
    pub(super) fn release(&mut self, repository: usize, random: &mut Random) {
        let Repository {
            base,
            inherited,
            versions,
            ..
        } = &self.repositories[repository];
        let Some(newest) = versions.front() else {
            return;
        };
        let (below, own) = newest.layers.split_at(*inherited);
        let base = &self.bases[*base].layers;
        let same = base.len() == below.len()
            && base.iter().zip(below).all(|(one, two)| one.key == two.key);
        let kept = if same {
            own.len()
                .saturating_sub(1 + random.geometric(self.parameters.changed_layers))
        } else {
            0
        };
        let mut layers = base.clone();
        let inherited = layers.len();
        let own = own.to_vec();
        for (index, layer) in own.into_iter().enumerate() {
            layers.push(if index < kept {
                layer
            } else {
                self.rebuilt(layer, random)
            });
        }
        let image = self.image(layers, random);
        let of = &mut self.repositories[repository];
        of.inherited = inherited;
        of.versions.push_front(image);
        if of.versions.len() > self.parameters.versions
            && let Some(dead) = of.versions.pop_back()
            && dead.pulled
        {
            for layer in dead.layers {
                self.forget(layer.key);
            }
        }
    }

    fn forget(&mut self, layer: u64) {
        if let Some(images) = self.shared.get_mut(&layer) {
            *images -= 1;
            if *images == 0 {
                self.shared.remove(&layer);
            }
        }
    }

    /// Pulls a version of a repository. `age` 0 is the newest version, and an `age` beyond the
    /// oldest available version means the oldest version. Also returns, for each layer, the number
    /// of available and pulled images that contain this layer.
    pub(super) fn pull(&mut self, repository: usize, age: usize) -> (&Image, &HashMap<u64, u32>) {
        let versions = &mut self.repositories[repository].versions;
        let age = age.min(versions.len() - 1);
        let image = &mut versions[age];
        if !std::mem::replace(&mut image.pulled, true) {
            for layer in &image.layers {
                *self.shared.entry(layer.key).or_default() += 1;
            }
        }
        (image, &self.shared)
    }
}

/// Compressed size in bytes of the layer of a build step that changes no file.
const EMPTY_BYTES: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue(seed: u64, random: &mut Random) -> Catalogue {
        Catalogue::new(&WorkloadParameters::default(), seed, random)
    }

    fn keys(image: &Image) -> Vec<u64> {
        image.layers.iter().map(|layer| layer.key).collect()
    }

    #[test]
    fn images_have_the_number_of_layers_and_empty_layers_of_docker_hub() {
        for seed in 1..=3 {
            let mut random = Random::new(seed);
            let mut catalogue = catalogue(seed, &mut random);
            let all = catalogue.repositories.len();
            let images: Vec<Vec<Blob>> = (0..all)
                .map(|at| catalogue.pull(at, 0).0.layers.clone())
                .collect();
            let mut counts: Vec<usize> = images.iter().map(Vec::len).collect();
            counts.sort_unstable();
            let (median, high) = (counts[all / 2], counts[all * 9 / 10]);
            assert!((7..=9).contains(&median), "the median is {median}");
            assert!((15..=18).contains(&high), "the 90th percentile is {high}");
            let empty = images
                .iter()
                .filter(|layers| layers.iter().any(|layer| layer.size == EMPTY_BYTES))
                .count();
            let share = empty as f64 / all as f64;
            assert!((share - 0.52).abs() <= 0.1, "{share} have the empty layer");
        }
    }

    #[test]
    fn a_release_keeps_the_lower_layers_until_the_base_is_replaced() {
        let mut random = Random::new(1);
        let mut catalogue = catalogue(1, &mut random);
        let at = (0..)
            .find(|at| keys(&catalogue.repositories[*at].versions[0]).len() > 12)
            .unwrap_or(0);
        let before = keys(catalogue.pull(at, 0).0);
        catalogue.release(at, &mut random);
        let after = keys(catalogue.pull(at, 0).0);
        let (inherited, base) = {
            let repository = &catalogue.repositories[at];
            (repository.inherited, repository.base)
        };
        assert_eq!(before[..inherited], after[..inherited]);
        assert_ne!(before.last(), after.last());
        assert_eq!(keys(catalogue.pull(at, 1).0), before, "the old one lives");

        catalogue.release_base(base, &mut random);
        catalogue.release(at, &mut random);
        let rebuilt = keys(catalogue.pull(at, 0).0);
        let empty = ObjectKind::Layer.mark(mix(catalogue.salt));
        let kept = |key: &&u64| **key != empty && after[inherited..].contains(*key);
        assert_eq!(rebuilt.iter().find(kept), None, "all above is built anew");
    }

    #[test]
    fn the_oldest_version_is_deleted_and_its_layers_lose_one_image() {
        let mut random = Random::new(1);
        let mut catalogue = catalogue(1, &mut random);
        let dying = keys(catalogue.pull(0, 0).0);
        assert!(dying.iter().all(|key| catalogue.shared[key] >= 1));
        for _ in 0..catalogue.parameters.versions {
            catalogue.release(0, &mut random);
        }
        let oldest = catalogue.parameters.versions - 1;
        assert_ne!(keys(catalogue.pull(0, oldest + 5).0), dying);
        let top = dying.last().copied().unwrap_or(0);
        assert_eq!(catalogue.shared.get(&top), None);
    }
}
