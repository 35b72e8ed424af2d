//! N-Docker's layer-aware storing (LASS): what arrives last, and what is stored after it, goes to the fast tier.

use super::{Destination, Speed};

/// Layers are fetched some at a time, and stored one upon the other, from the bottom: when the one that arrives last
/// is here, it and all above it have still to be stored, while those below were stored during the fetch. So just
/// the former go to the fast tier (N-Docker 2019, "Layer-Aware Storing Scheme"; their Last Downloading Layer).
///
/// A cache stores each layer as it comes, in no order: there the place in the image only stands for the time. So where
/// the speeds of link and disk are known ([`LayerAware::pace`]) they decide: what the disk can have stored by the time that the
/// last layer is here goes to the disk, wherever in the image it is, and all else to the fast tier: so does what is so small that
/// the disk would be busy with finding places for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LayerAware {
    /// How many layers a client fetches at once: docker and containerd three.
    pub parallel: usize,
    /// How fast layers come and are stored, if that is known.
    pub pace: Option<FetchRate>,
}

/// What a fetch is bound by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FetchRate {
    /// Bytes a second that all fetches bring together.
    pub link: f64,
    /// How the disk stores what is here.
    pub disk: Speed,
}

/// A disk that is this much slower than it was still has stored in time what was given to it.
const CAUTION: f64 = 1.1;
/// What the disk may not have been given yet of a layer whose last byte is here: so often the ingest sets it to work.
pub(crate) const SYNC_INTERVAL: u64 = 4 << 20;
/// A deployment may end so much after its last byte: for a part in thirty of its time the disk can often have one layer more.
const SLACK: f64 = 1.03;
/// To make a layer durable, so many places are found: the end of its content, the file's length, its name.
const PLACES: f64 = 3.0;

/// How far a layer is.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LayerProgress {
    /// Bytes of the layer.
    pub size: u64,
    /// Bytes of it that are here; all of them when it is complete.
    pub landed: u64,
    /// Bytes a second that its fetch brings, when that is known.
    pub rate: Option<f64>,
    /// Whether somebody fetches it now.
    pub running: bool,
}

impl LayerProgress {
    fn left(&self) -> u64 {
        self.size.saturating_sub(self.landed)
    }
}

impl Default for LayerAware {
    fn default() -> Self {
        Self {
            parallel: 3,
            pace: None,
        }
    }
}

impl LayerAware {
    /// The layer that is expected to arrive last, of layers in the order of the manifest (the lowest first); the lowest
    /// of equals. `None` when all are here. O(layers × parallel).
    pub fn last_downloading(&self, layers: &[LayerProgress]) -> Option<usize> {
        // Bytes a second that are assumed of what nobody has measured: as those that are measured.
        let known = layers
            .iter()
            .filter_map(|layer| layer.rate)
            .filter(is_positive);
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
        let usual = if count > 0.0 { sum / count } else { 1.0 };
        let seconds = |layer: &LayerProgress| {
            #[expect(clippy::cast_precision_loss, reason = "an expectation")]
            let left = layer.left() as f64;
            left / layer.rate.filter(is_positive).unwrap_or(usual)
        };
        // When each of the client's hands is free again: those that fetch now, then the rest in order.
        let mut hands = vec![0.0_f64; self.parallel.max(1)];
        let mut last: Option<(f64, usize)> = None;
        for running in [true, false] {
            for (index, layer) in layers.iter().enumerate() {
                if layer.left() == 0 || layer.running != running {
                    continue;
                }
                let Some(hand) = hands.iter_mut().min_by(|a, b| a.total_cmp(b)) else {
                    continue;
                };
                *hand += seconds(layer);
                let later =
                    last.is_none_or(|(end, at)| *hand > end || (*hand == end && index < at));
                if later {
                    last = Some((*hand, index));
                }
            }
        }
        last.map(|(_, index)| index)
    }

    /// Where layer `index` goes. O(layers × parallel), and a sort of them.
    pub fn place(&self, layers: &[LayerProgress], index: usize) -> Destination {
        if let Some(pace) = &self.pace
            && pace.link.is_finite()
            && pace.link > 0.0
        {
            let late = self.late(layers, pace);
            return match late.get(index) {
                Some(true) => Destination::Fast,
                _ => Destination::Disk,
            };
        }
        match self.last_downloading(layers) {
            Some(last) if index >= last => Destination::Fast,
            _ => Destination::Disk,
        }
    }
}

impl LayerAware {
    /// When each layer is here, in seconds from now: all that are fetched share the link. `None` of what is stored.
    fn arrivals(&self, layers: &[LayerProgress], link: f64) -> Vec<Option<f64>> {
        let mut arrivals: Vec<_> = layers
            .iter()
            .map(|layer| (layer.left() == 0 && layer.running).then_some(0.0))
            .collect();
        let is_missing = |layer: &&LayerProgress| layer.left() > 0;
        let order = [true, false].into_iter().flat_map(|running| {
            let all = (0..layers.len()).zip(layers);
            all.filter(move |(_, layer)| is_missing(layer) && layer.running == running)
        });
        let mut waiting = order;
        // Bytes that are left of what is fetched at a time.
        let mut hands: Vec<(usize, f64)> = Vec::new();
        let mut now = 0.0;
        loop {
            #[expect(clippy::cast_precision_loss, reason = "an expectation")]
            while hands.len() < self.parallel.max(1)
                && let Some((index, layer)) = waiting.next()
            {
                hands.push((index, layer.left() as f64));
            }
            let Some(least) = hands.iter().map(|(_, left)| *left).reduce(f64::min) else {
                return arrivals;
            };
            #[expect(clippy::cast_precision_loss, reason = "a few hands")]
            let share = link / hands.len() as f64;
            now += least / share;
            hands.retain_mut(|(index, left)| {
                *left -= least;
                let is_here = *left <= 0.0;
                if is_here {
                    arrivals[*index] = Some(now);
                }
                !is_here
            });
        }
    }

    /// Whether the disk would still be storing each layer when the last one is here. Of those that it would not, as many bytes as can
    /// be together: the largest first, or the first to come, whichever is more. O(layers²).
    fn late(&self, layers: &[LayerProgress], pace: &FetchRate) -> Vec<bool> {
        let arrivals = self.arrivals(layers, pace.link);
        let mut coming: Vec<Coming> = (0..layers.len())
            .filter_map(|index| {
                let (arrival, layer) = (arrivals[index]?, layers[index]);
                Some(Coming {
                    index,
                    arrival,
                    left: layer.size.min(layer.left().saturating_add(SYNC_INTERVAL)),
                })
            })
            .collect();
        coming.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        let end = SLACK * coming.last().map_or(0.0, |last| last.arrival);
        coming.retain(|it| !pace.is_small(layers[it.index].size));
        let first = pace.stored(&coming, end);
        coming.sort_by_key(|it| std::cmp::Reverse(it.left));
        let largest = pace.stored(&coming, end);
        let bytes = |stored: &[Coming]| stored.iter().map(|it| it.left).sum::<u64>();
        let stored = if bytes(&largest) > bytes(&first) {
            largest
        } else {
            first
        };
        let mut late = vec![true; layers.len()];
        for it in stored {
            late[it.index] = false;
        }
        late
    }
}

/// A layer on its way to the disk.
#[derive(Clone, Copy)]
struct Coming {
    index: usize,
    /// Seconds from now until its last byte is here.
    arrival: f64,
    /// Bytes that the disk has still to be given.
    left: u64,
}

impl FetchRate {
    fn seconds(&self, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let bytes = bytes as f64;
        bytes * self.disk.per_byte * CAUTION
    }

    /// Whether finding a place for so many bytes takes the disk longer than to write them: the fast tier has that time for next to
    /// nothing, and the disk has it for others.
    pub(crate) fn is_small(&self, bytes: u64) -> bool {
        self.seconds(bytes) < self.disk.latency * PLACES
    }

    /// Which of them the disk can have stored by `end`, each taken in turn if it still can be. It stores while they come, so that
    /// of each an end is left; it is as fast as that end tells, or as all that it was given.
    fn stored(&self, coming: &[Coming], end: f64) -> Vec<Coming> {
        let mut stored: Vec<Coming> = Vec::new();
        for one in coming {
            let at = stored.partition_point(|it| it.arrival <= one.arrival);
            stored.insert(at, *one);
            let (mut given, mut places) = (0_u64, 0.0);
            let in_time = stored.iter().all(|it| {
                given = given.saturating_add(it.left);
                let alone = it.arrival + self.seconds(it.left.min(SYNC_INTERVAL));
                let after = alone.max(self.seconds(given) + places);
                places += self.disk.latency * PLACES;
                after + self.disk.latency * PLACES <= end
            });
            if !in_time {
                stored.remove(at);
            }
        }
        stored
    }
}

fn is_positive(rate: &f64) -> bool {
    rate.is_finite() && *rate > 0.0
}
