//! CHERRY's rank of a layer.

/// In how many images a layer is, times how often containers of them were run (CHERRY, "layer value"). It uses
/// neither sizes nor seconds.
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
