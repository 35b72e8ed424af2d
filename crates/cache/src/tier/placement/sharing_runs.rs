//! The placement rule `sharing-runs`: ranks a layer by the number of images that contain it, times
//! the number of container starts that use it. The paper CHERRY ranks layers in this way.

/// The rank of a layer is the number of images that contain it, times the number of container
/// starts that use it (CHERRY, "layer value"). Neither sizes nor times matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SharingRuns;

impl SharingRuns {
    /// Returns the rank of a layer. Layers with a higher rank are evicted later.
    pub fn rank(&self, sharing: u32, runs: f64) -> f64 {
        if runs.is_nan() || runs <= 0.0 {
            return 0.0;
        }
        f64::from(sharing.max(1)) * runs
    }
}
