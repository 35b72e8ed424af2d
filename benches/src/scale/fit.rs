//! Fits the constants of the scale simulation to measurements, and computes how far the simulation
//! deviates from other measurements.

use super::machine::ImageRequests;
use super::simulation::{Begin, Image, Way, World, simulate};
use super::waves::{Row, Wave};

/// The fitted constants.
pub(super) struct Fitted {
    pub(super) world: World,
    /// The largest number of machines that the fit uses. The results for larger numbers are
    /// predictions.
    pub(super) most: usize,
}

/// Fits the constants to all rows. With three or more rows, leaves the row with the most machines
/// out, as a test of the prediction.
pub(super) fn fit(rows: &[Row], images: &[ImageRequests], cores: f64) -> Fitted {
    let shown = match rows {
        [shown @ .., _] if shown.len() >= 2 => shown,
        all => all,
    };
    let times = |of: fn(&Row) -> &Wave| {
        let points = shown.iter().map(|row| (count(row), of(row).whole()));
        line(&points.collect::<Vec<_>>())
    };
    let (direct, warm) = (times(|row| &row.direct), times(|row| &row.warm));
    #[expect(clippy::cast_precision_loss, reason = "some images")]
    let (number, images): (f64, Vec<Image>) = (
        images.len() as f64,
        images
            .iter()
            .map(|image| Image {
                bytes: image.bytes() as f64,
                requests: image.requests() as f64,
            })
            .collect(),
    );
    let mut world = World {
        uplink: 0.0,
        dpu_link: 0.0,
        begin: Begin {
            direct: direct.0 / number,
            empty: 0.0,
            warm: warm.0 / number,
        },
        cpu_byte: 0.0,
        cpu_stored: 0.0,
        cpu_request: least(shown, |row| row.request),
        cores,
        wire: 0.0,
        images,
    };
    let (bytes, requests) = world.sums();
    world.uplink = bytes / direct.1;
    world.dpu_link = bytes / warm.1;
    // Uses the row with many machines, because the kernel's CPU accounting is coarse.
    let served = |row: &Row| (row.warm.cpu / count(row) - requests * world.cpu_request) / bytes;
    world.cpu_byte = shown.last().map_or(0.0, served).max(0.0);
    let stored = |row: &Row| (row.empty.cpu - row.warm.cpu) / bytes;
    world.cpu_stored = least(shown, stored).max(0.0);
    world.wire = least(shown, |row| row.direct.down / (bytes * count(row)));
    let alone = shown.first().map_or(0.0, |row| row.empty.whole());
    world.begin.empty = ((alone - bytes / world.uplink) / number).max(0.0);
    Fitted {
        world,
        most: shown.last().map_or(0, |row| row.machines),
    }
}

#[expect(clippy::cast_precision_loss, reason = "some machines")]
fn count(row: &Row) -> f64 {
    row.machines as f64
}

fn least(rows: &[Row], of: impl Fn(&Row) -> f64) -> f64 {
    rows.iter().map(of).fold(f64::INFINITY, f64::min)
}

/// The line (value at 0, slope) with the least sum of squared relative deviations.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let [mut uu, mut uv, mut vv, mut u, mut v] = [0.0; 5];
    for (n, t) in points {
        let (one, each) = (1.0 / t, n / t);
        uu += one * one;
        uv += one * each;
        vv += each * each;
        u += one;
        v += each;
    }
    let whole = uu * vv - uv * uv;
    let (at_none, each) = ((u * vv - v * uv) / whole, (uu * v - uv * u) / whole);
    // A single point has no slope, and times are not negative.
    if whole.abs() < 1e-12 || at_none < 0.0 || each <= 0.0 {
        return (0.0, v / vv);
    }
    (at_none, each)
}

/// Relative deviation of the simulation from the measurement.
pub(super) fn deviation(world: &World, row: &Row, way: Way) -> f64 {
    let measured = match way {
        Way::Direct => &row.direct,
        Way::Empty => &row.empty,
        Way::Warm => &row.warm,
    };
    simulate(world, row.machines, way, 0.0).mean / measured.whole() - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_fitted_exactly() {
        let (at_none, each) = line(&[(1.0, 2.5), (4.0, 4.0), (16.0, 10.0)]);
        assert!((at_none - 2.0).abs() < 1e-9 && (each - 0.5).abs() < 1e-9);
        // A negative start time becomes 0.
        assert_eq!(line(&[(1.0, 1.0), (2.0, 3.0)]).0, 0.0);
        assert_eq!(line(&[(4.0, 8.0)]), (0.0, 2.0));
    }
}
