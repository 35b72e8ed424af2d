//! Miss ratios over cache sizes, drawn as SVG.

use std::fmt::Write as _;

use super::report::{Report, Row};
use super::source::Summary;
use crate::config::human_bytes;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 56.0;
/// Between two panels, and below one.
const GAP: f64 = 70.0;
const LEGEND: f64 = 150.0;

/// Told apart by people who do not see all colours, together with [`DASHES`].
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#56b4e9", "#e6a700", "#333333",
];
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

/// Two panels a trace, object and byte miss ratio; a line a policy; sizes on a logarithmic axis.
pub(crate) fn plot(report: &Report) -> String {
    let mut policies: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let width = LEFT + 2.0 * (WIDTH + GAP) + LEGEND;
    let band = (TOP + HEIGHT + GAP).max(TOP + 18.0 * policies.len() as f64 + 20.0);
    let height = band * report.traces.len() as f64;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    for (at, summary) in report.traces.iter().enumerate() {
        let top = band * at as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\">{}</text>",
            top + 20.0,
            escape(&summary.trace)
        );
        let rows: Vec<&Row> = report.rows_of(summary).collect();
        let y = top + TOP;
        let axis = Sizes::of(&rows);
        let objects = |row: &Row| row.object_miss_ratio;
        let bytes = |row: &Row| row.byte_miss_ratio;
        let panels = [
            ("object miss ratio", objects as fn(&Row) -> f64),
            ("byte miss ratio", bytes),
        ];
        for (panel, (title, ratio)) in panels.into_iter().enumerate() {
            let x = LEFT + panel as f64 * (WIDTH + GAP);
            frame(&mut svg, (x, y), title, &axis, summary);
            for (nth, policy) in policies.iter().enumerate() {
                let mut points: Vec<(f64, f64)> = rows
                    .iter()
                    .filter(|row| row.policy == *policy)
                    .map(|row| {
                        (
                            x + axis.place(row.size_bytes),
                            y + HEIGHT * (1.0 - ratio(row)),
                        )
                    })
                    .collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                line(&mut svg, &points, nth);
            }
        }
        let x = LEFT + 2.0 * (WIDTH + GAP) - GAP + 16.0;
        for (nth, policy) in policies.iter().enumerate() {
            let y = y + 10.0 + 18.0 * nth as f64;
            line(&mut svg, &[(x, y), (x + 28.0, y)], nth);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\">{policy}</text>",
                x + 36.0,
                y + 4.0
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// The horizontal axis.
struct Sizes {
    /// Different sizes, ascending.
    bytes: Vec<u64>,
}

impl Sizes {
    fn of(rows: &[&Row]) -> Self {
        let mut bytes: Vec<u64> = rows.iter().map(|row| row.size_bytes).collect();
        bytes.sort_unstable();
        bytes.dedup();
        Self { bytes }
    }

    /// From the left end of a panel.
    fn place(&self, bytes: u64) -> f64 {
        let log = |bytes: u64| (bytes.max(1) as f64).ln();
        match (self.bytes.first(), self.bytes.last()) {
            (Some(first), Some(last)) if first < last => {
                let share = (log(bytes) - log(*first)) / (log(*last) - log(*first));
                WIDTH * (0.04 + 0.92 * share)
            }
            _ => WIDTH / 2.0,
        }
    }
}

fn frame(svg: &mut String, (x, y): (f64, f64), title: &str, axis: &Sizes, summary: &Summary) {
    let (right, bottom) = (x + WIDTH, y + HEIGHT);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\">{title}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">cache size</text>",
        y - 10.0,
        x + WIDTH / 2.0,
        bottom + 48.0
    );
    for tenth in 0..=10 {
        let ratio = f64::from(tenth) / 10.0;
        let at = y + HEIGHT * (1.0 - ratio);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#e3e3e3\"/>"
        );
        if tenth % 2 == 0 {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.1}</text>",
                x - 6.0,
                at + 4.0
            );
        }
    }
    let mut free_from = f64::NEG_INFINITY;
    for bytes in &axis.bytes {
        let at = x + axis.place(*bytes);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{bottom:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"black\"/>",
            bottom + 5.0
        );
        // Labels that would lie on one another are left out; the ticks stay.
        if at < free_from {
            continue;
        }
        free_from = at + 62.0;
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#666666\">{}</text>",
            bottom + 18.0,
            human_bytes(*bytes),
            bottom + 31.0,
            percent(*bytes, summary.footprint_bytes),
        );
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{x:.1},{y:.1} V{bottom:.1} H{right:.1}\" fill=\"none\" stroke=\"black\"/>"
    );
}

fn line(svg: &mut String, points: &[(f64, f64)], nth: usize) {
    let colour = COLOURS[nth % COLOURS.len()];
    let dash = DASHES[nth / COLOURS.len() % DASHES.len()];
    let path: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"/>",
        path.join(" ")
    );
    for (x, y) in points {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>"
        );
    }
}

fn percent(bytes: u64, footprint: u64) -> String {
    let share = 100.0 * bytes as f64 / footprint.max(1) as f64;
    match share {
        _ if share >= 10.0 => format!("{share:.0} %"),
        _ if share >= 0.1 => format!("{share:.1} %"),
        _ => format!("{share:.3} %"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
