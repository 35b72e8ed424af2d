//! The SVG chart of `pierhead-replay --svg`: draws the miss ratio of each policy over the cache
//! size.

use pierhead_oci::units::human_bytes;
use pierhead_replay::chart::{Axis, Band, Figure, Line, Marks, Panel, Tick};

use super::report::{Report, Row};
use super::source::Summary;

/// Draws two panels per trace, for object miss ratio and byte miss ratio. Each panel has a line per
/// policy and a logarithmic axis of cache sizes.
pub(crate) fn plot(report: &Report) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let bands = report.traces.iter().map(|summary| {
        let rows: Vec<&Row> = report.rows_of(summary).collect();
        let objects = |row: &Row| row.object_miss_ratio;
        let bytes = |row: &Row| row.byte_miss_ratio;
        let panels = [
            ("object miss ratio", objects as fn(&Row) -> f64),
            ("byte miss ratio", bytes),
        ];
        Band {
            title: summary.trace.clone(),
            panels: panels
                .map(|(title, ratio)| Panel {
                    title: title.to_owned(),
                    below: "cache size".to_owned(),
                    x: sizes(&rows, summary),
                    y: ratios(),
                    lines: lines(&rows, &policies, ratio),
                })
                .into(),
            legend: policies.iter().map(|&it| it.to_owned()).collect(),
        }
    });
    let figure = Figure {
        bands: bands.collect(),
    };
    figure.svg()
}

fn lines(rows: &[&Row], policies: &[&str], ratio: fn(&Row) -> f64) -> Vec<Line> {
    let line = |(style, policy): (usize, &&str)| {
        let of_it = rows.iter().filter(|row| row.policy == *policy);
        let mut points: Vec<(f64, f64)> = of_it
            .map(|row| (row.size_bytes.max(1) as f64, ratio(row)))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line {
            style,
            marks: Marks::Both,
            points,
        }
    };
    policies.iter().enumerate().map(line).collect()
}

/// Creates the axis of the replayed cache sizes. Each size is also labelled with its share of the
/// trace's footprint.
fn sizes(rows: &[&Row], summary: &Summary) -> Axis {
    let mut bytes: Vec<u64> = rows.iter().map(|row| row.size_bytes).collect();
    bytes.sort_unstable();
    bytes.dedup();
    let end = |of: Option<&u64>| of.copied().unwrap_or(1).max(1) as f64;
    let ticks = bytes.iter().map(|&bytes| Tick {
        at: bytes.max(1) as f64,
        label: human_bytes(bytes),
        note: percent(bytes, summary.footprint_bytes),
    });
    Axis::logarithmic(end(bytes.first()), end(bytes.last()), ticks.collect())
}

/// Creates the axis of miss ratios, with a grid line at every tenth and a label at every second
/// grid line.
fn ratios() -> Axis {
    let ticks = (0..=10).map(|tenth| {
        let ratio = f64::from(tenth) / 10.0;
        let name = (tenth % 2 == 0).then(|| format!("{ratio:.1}"));
        Tick::new(ratio, name.unwrap_or_default())
    });
    Axis::linear(0.0, 1.0, ticks.collect())
}

fn percent(bytes: u64, footprint: u64) -> String {
    let share = 100.0 * bytes as f64 / footprint.max(1) as f64;
    match share {
        _ if share >= 10.0 => format!("{share:.0} %"),
        _ if share >= 0.1 => format!("{share:.1} %"),
        _ => format!("{share:.3} %"),
    }
}
