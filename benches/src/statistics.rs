//! Statistics of measurements, for the printed tables: median, percentile, mean, ratio.

use anyhow::{Context, Result};

/// Bytes in megabytes (10^6 bytes).
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The ratio `one / other`.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

/// The median.
pub(crate) fn median(values: &mut [f64]) -> Result<f64> {
    percentile(values, 50)
}

/// The value below which `percent` percent of the values are.
pub(crate) fn percentile(values: &mut [f64], percent: usize) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values
        .get(values.len() * percent / 100)
        .or(values.last())
        .copied()
        .context("nothing was measured")
}

/// The arithmetic mean.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
