//! The placement rule `layer-aware` (LASS, from the paper N-Docker): stores the layers that arrive
//! last on the fast tier, so that the disk does not delay the end of a pull.

use super::{Destination, Speed};

/// The placement rule LASS (N-Docker 2019, "Layer-Aware Storing Scheme").
///
/// A client downloads several layers at a time, but unpacks and stores them one after another,
/// starting with the lowest layer. When the last layer arrives (N-Docker: "Last Downloading
/// Layer"), the client still has to store this layer and all layers above it. The client has stored
/// the lower layers during the download. Therefore N-Docker puts the last layer and the layers
/// above it on the fast tier.
///
/// This cache stores layers in the order of their arrival, so the position of a layer in the image
/// is only an approximation of the order of storing. If the speeds of link and disk are known
/// ([`LayerAware::pace`]), they decide instead of the position: the disk gets the layers that it
/// can store before the last layer arrives. All other layers go to the fast tier. Small layers, for
/// which the disk would need most of the time for seeks, also go to the fast tier.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LayerAware {
    /// Number of layers that a client downloads at the same time: three in docker and containerd.
    pub parallel: usize,
    /// Speeds of the link and the disk, if known.
    pub pace: Option<FetchRate>,
}

/// The speeds that limit a pull.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FetchRate {
    /// Bytes per second of all downloads together.
    pub link: f64,
    /// Write speed of the disk.
    pub disk: Speed,
}

/// Safety factor for the write time of the disk: assumes that the disk is 10 % slower than
/// measured.
const WRITE_TIME_FACTOR: f64 = 1.1;
/// Number of bytes of a fill after which the disk starts to write these bytes. When the last byte
/// of a layer arrives, at most this number of bytes is unwritten.
pub(crate) const SYNC_INTERVAL: u64 = 4 << 20;
/// Factor by which the end of a pull may be later than the arrival of its last byte. With 3 % more
/// time, the disk can often store one more layer.
const END_TIME_FACTOR: f64 = 1.03;
/// Number of seeks that the disk needs to make a layer durable: for the end of its content, for the
/// file's length, and for the file's name.
const SEEKS_PER_LAYER: f64 = 3.0;

/// Progress of the download of a layer.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LayerProgress {
    /// Size of the layer in bytes.
    pub size: u64,
    /// Number of bytes that have arrived. When the layer is complete, this number equals `size`.
    pub landed: u64,
    /// Bytes per second of the layer's download, if known.
    pub rate: Option<f64>,
    /// Whether a fill of the layer is running.
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
    /// Returns the index of the layer that is expected to arrive last. If several layers arrive
    /// last, returns the lowest of them. `layers` are in the order of the manifest, with the lowest
    /// layer first. `None` when all layers have arrived. Takes O(layers × parallel) time.
    pub fn last_downloading(&self, layers: &[LayerProgress]) -> Option<usize> {
        // Assumed bytes per second of a layer without a measurement: the mean of the measured
        // rates.
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
        // Time at which each of the client's parallel downloads ends. The running downloads are
        // assigned first, then the waiting layers in order.
        let mut fetches = vec![0.0_f64; self.parallel.max(1)];
        let mut last: Option<(f64, usize)> = None;
        for running in [true, false] {
            for (index, layer) in layers.iter().enumerate() {
                if layer.left() == 0 || layer.running != running {
                    continue;
                }
                let Some(fetch) = fetches.iter_mut().min_by(|a, b| a.total_cmp(b)) else {
                    continue;
                };
                *fetch += seconds(layer);
                let later =
                    last.is_none_or(|(end, at)| *fetch > end || (*fetch == end && index < at));
                if later {
                    last = Some((*fetch, index));
                }
            }
        }
        last.map(|(_, index)| index)
    }

    /// Returns the tier for layer `index`. Takes O(layers × parallel) time, plus a sort.
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
    /// Returns the arrival time of each layer, in seconds from now. Running downloads share the
    /// link equally. `None` for a stored layer.
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
        // Index and remaining bytes of each running download.
        let mut fetches: Vec<(usize, f64)> = Vec::new();
        let mut now = 0.0;
        loop {
            #[expect(clippy::cast_precision_loss, reason = "an expectation")]
            while fetches.len() < self.parallel.max(1)
                && let Some((index, layer)) = waiting.next()
            {
                fetches.push((index, layer.left() as f64));
            }
            let Some(least) = fetches.iter().map(|(_, left)| *left).reduce(f64::min) else {
                return arrivals;
            };
            #[expect(clippy::cast_precision_loss, reason = "a few fetches")]
            let share = link / fetches.len() as f64;
            now += least / share;
            fetches.retain_mut(|(index, left)| {
                *left -= least;
                let is_here = *left <= 0.0;
                if is_here {
                    arrivals[*index] = Some(now);
                }
                !is_here
            });
        }
    }

    /// Whether the disk would still be storing each layer when the last layer arrives. Tries two
    /// orders: largest layers first, and earliest layers first. Uses the order in which the disk
    /// stores more bytes in time. Takes O(layers²) time.
    fn late(&self, layers: &[LayerProgress], pace: &FetchRate) -> Vec<bool> {
        let arrivals = self.arrivals(layers, pace.link);
        let mut arriving_layers: Vec<ArrivingLayer> = (0..layers.len())
            .filter_map(|index| {
                let (arrival, layer) = (arrivals[index]?, layers[index]);
                Some(ArrivingLayer {
                    index,
                    arrival,
                    left: layer.size.min(layer.left().saturating_add(SYNC_INTERVAL)),
                })
            })
            .collect();
        arriving_layers.sort_by(|a, b| a.arrival.total_cmp(&b.arrival));
        let end = END_TIME_FACTOR * arriving_layers.last().map_or(0.0, |last| last.arrival);
        arriving_layers.retain(|it| !pace.is_small(layers[it.index].size));
        let first = pace.stored(&arriving_layers, end);
        arriving_layers.sort_by_key(|it| std::cmp::Reverse(it.left));
        let largest = pace.stored(&arriving_layers, end);
        let bytes = |stored: &[ArrivingLayer]| stored.iter().map(|it| it.left).sum::<u64>();
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

/// A layer that is not completely on the disk.
#[derive(Clone, Copy)]
struct ArrivingLayer {
    index: usize,
    /// Seconds from now until the last byte of the layer arrives.
    arrival: f64,
    /// Number of bytes of the layer that are not yet written to the disk.
    left: u64,
}

impl FetchRate {
    fn seconds(&self, bytes: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an expectation")]
        let bytes = bytes as f64;
        bytes * self.disk.per_byte * WRITE_TIME_FACTOR
    }

    /// Whether the disk needs longer to seek than to write this number of bytes. Such a small layer
    /// takes hardly any space on the fast tier.
    pub(crate) fn is_small(&self, bytes: u64) -> bool {
        self.seconds(bytes) < self.disk.latency * SEEKS_PER_LAYER
    }

    /// Returns the layers that the disk can finish storing before the time `end`. Takes each layer
    /// in turn, and adds the layer if the disk can still store it in time. The disk writes while
    /// layers arrive, so that only the last bytes of a layer remain to be written after its
    /// arrival. A layer is stored when two conditions hold: its own last bytes are written, and all
    /// bytes that the disk got before are written.
    fn stored(&self, arriving_layers: &[ArrivingLayer], end: f64) -> Vec<ArrivingLayer> {
        let mut stored: Vec<ArrivingLayer> = Vec::new();
        for one in arriving_layers {
            let at = stored.partition_point(|it| it.arrival <= one.arrival);
            stored.insert(at, *one);
            let (mut given, mut seek_seconds) = (0_u64, 0.0);
            let in_time = stored.iter().all(|it| {
                given = given.saturating_add(it.left);
                let alone = it.arrival + self.seconds(it.left.min(SYNC_INTERVAL));
                let after = alone.max(self.seconds(given) + seek_seconds);
                seek_seconds += self.disk.latency * SEEKS_PER_LAYER;
                after + self.disk.latency * SEEKS_PER_LAYER <= end
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
