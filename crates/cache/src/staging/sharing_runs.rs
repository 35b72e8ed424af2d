//! CHERRY's own rank of a layer, to compare with.

/// In how many images a layer is, times how often containers of them were run (CHERRY, "layer value"). It knows no sizes
/// and no seconds, which is what [`Value`](super::Value) is compared with it for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharingRuns;

impl SharingRuns {
    /// Higher is kept longer.
    pub fn rank(&self, sharing: u32, runs: f64) -> f64 {
        if runs.is_nan() || runs <= 0.0 {
            return 0.0;
        }
        f64::from(sharing.max(1)) * runs
    }
}
