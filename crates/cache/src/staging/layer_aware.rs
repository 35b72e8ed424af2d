//! N-Docker's layer-aware storing (LASS): what arrives last, and what is stored after it, goes to the fast tier.

use super::Placement;

/// Layers are fetched some at a time, and stored one upon the other, from the bottom: when the one that arrives last
/// is here, it and all above it have still to be stored, while those below were stored during the fetch. So just
/// the former go to the fast tier (N-Docker 2019, "Layer-Aware Storing Scheme"; their Last Downloading Layer).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerAware {
    /// How many layers a client fetches at once: docker and containerd three.
    pub parallel: usize,
}

/// How far a layer is.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Progress {
    /// Bytes of the layer.
    pub size: u64,
    /// Bytes of it that are here; all of them when it is complete.
    pub landed: u64,
    /// Bytes a second that its fetch brings, when that is known.
    pub rate: Option<f64>,
    /// Whether somebody fetches it now.
    pub running: bool,
}

impl Progress {
    fn left(&self) -> u64 {
        self.size.saturating_sub(self.landed)
    }
}

impl Default for LayerAware {
    fn default() -> Self {
        Self { parallel: 3 }
    }
}

impl LayerAware {
    /// The layer that is expected to arrive last, of layers in the order of the manifest (the lowest first); the lowest
    /// of equals. `None` when all are here. O(layers × parallel).
    pub fn last_downloading(&self, layers: &[Progress]) -> Option<usize> {
        // Bytes a second that are assumed of what nobody has measured: as those that are measured.
        let known = layers.iter().filter_map(|layer| layer.rate).filter(sound);
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
        let usual = if count > 0.0 { sum / count } else { 1.0 };
        let seconds = |layer: &Progress| {
            #[expect(clippy::cast_precision_loss, reason = "an expectation")]
            let left = layer.left() as f64;
            left / layer.rate.filter(sound).unwrap_or(usual)
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

    /// Where layer `index` goes.
    pub fn place(&self, layers: &[Progress], index: usize) -> Placement {
        match self.last_downloading(layers) {
            Some(last) if index >= last => Placement::Fast,
            _ => Placement::Disk,
        }
    }
}

fn sound(rate: &f64) -> bool {
    rate.is_finite() && *rate > 0.0
}
