//! The placement rule `sharing-runs`: ranks a layer as CHERRY does, by its number of images times
//! its number of container starts.

/// Number of images that contain a layer, times the number of container starts that use it (CHERRY,
/// "layer value"). Uses neither sizes nor times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharingRuns;

impl SharingRuns {
    /// Layers with a higher rank are evicted later.
    pub fn rank(&self, sharing: u32, runs: f64) -> f64 {
        if runs.is_nan() || runs <= 0.0 {
            return 0.0;
        }
        f64::from(sharing.max(1)) * runs
    }
}
