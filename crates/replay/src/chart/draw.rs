//! Draws a line chart as an SVG document.

use std::fmt::Write as _;

use crate::chart::{Band, Figure, Line, Marks, Panel};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 56.0;
/// Distance in pixels between two panels, and below a panel.
const GAP: f64 = 70.0;
const LEGEND: f64 = 150.0;
/// Margin on either side of the horizontal axis, as a share of the panel's width.
const MARGIN: f64 = 0.04;
/// Height of a legend entry in pixels.
const ENTRY: f64 = 18.0;
/// Maximum width in pixels of a label of the horizontal axis.
const LABEL: f64 = 62.0;

/// The colours of lines. Together with [`DASHES`], colour-blind readers can tell the lines apart.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a6761d", "#56b4e9", "#e6a700", "#333333",
];
const DASHES: [&str; 3] = ["none", "6 3", "2 3"];

pub(crate) fn document(figure: &Figure) -> String {
    let panels = figure.bands.iter().map(|it| it.panels.len()).max();
    let width = LEFT + panels.unwrap_or(0) as f64 * (WIDTH + GAP) + LEGEND;
    let whole: f64 = figure.bands.iter().map(height).sum();
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{whole}\" viewBox=\"0 0 {width} {whole}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    let mut top = 0.0;
    for one in &figure.bands {
        band(&mut svg, one, top);
        top += height(one);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the height of a band in pixels: the height of its panels or of its legend, whichever is
/// greater.
fn height(band: &Band) -> f64 {
    (TOP + HEIGHT + GAP).max(TOP + ENTRY * band.legend.len() as f64 + 20.0)
}

fn band(svg: &mut String, band: &Band, top: f64) {
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{:.1}\" font-size=\"14\" font-weight=\"bold\">{}</text>",
        top + 20.0,
        escape(&band.title)
    );
    let y = top + TOP;
    for (nth, panel) in band.panels.iter().enumerate() {
        let x = LEFT + nth as f64 * (WIDTH + GAP);
        frame(svg, (x, y), panel);
        for line in &panel.lines {
            let points = line.points.iter().map(|&(at, value)| {
                (
                    x + across(panel, at),
                    y + HEIGHT * (1.0 - panel.y.share(value)),
                )
            });
            draw(svg, &points.collect::<Vec<_>>(), line);
        }
    }
    let x = LEFT + band.panels.len() as f64 * (WIDTH + GAP) - GAP + 16.0;
    for (style, name) in band.legend.iter().enumerate() {
        let y = y + 10.0 + ENTRY * style as f64;
        let sample = Line {
            style,
            marks: Marks::Both,
            points: Vec::new(),
        };
        draw(svg, &[(x, y), (x + 28.0, y)], &sample);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 36.0,
            y + 4.0,
            escape(name)
        );
    }
}

/// Returns the horizontal position of a value in a panel, in pixels.
fn across(panel: &Panel, at: f64) -> f64 {
    WIDTH * (MARGIN + (1.0 - 2.0 * MARGIN) * panel.x.share(at))
}

fn frame(svg: &mut String, (x, y): (f64, f64), panel: &Panel) {
    let (right, bottom) = (x + WIDTH, y + HEIGHT);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        y - 10.0,
        escape(&panel.title),
        x + WIDTH / 2.0,
        bottom + 48.0,
        escape(&panel.below)
    );
    for tick in &panel.y.ticks {
        let at = y + HEIGHT * (1.0 - panel.y.share(tick.at));
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#e3e3e3\"/>"
        );
        if !tick.label.is_empty() {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                x - 6.0,
                at + 4.0,
                escape(&tick.label)
            );
        }
    }
    let mut free_from = f64::NEG_INFINITY;
    for tick in &panel.x.ticks {
        let at = x + across(panel, tick.at);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{bottom:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"black\"/>",
            bottom + 5.0
        );
        // Labels that would overlap are left out, but their ticks are drawn.
        if at < free_from {
            continue;
        }
        free_from = at + LABEL;
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            escape(&tick.label)
        );
        if !tick.note.is_empty() {
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#666666\">{}</text>",
                bottom + 31.0,
                escape(&tick.note)
            );
        }
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{x:.1},{y:.1} V{bottom:.1} H{right:.1}\" fill=\"none\" stroke=\"black\"/>"
    );
}

fn draw(svg: &mut String, points: &[(f64, f64)], line: &Line) {
    let colour = COLOURS[line.style % COLOURS.len()];
    let dash = DASHES[line.style / COLOURS.len() % DASHES.len()];
    if line.marks != Marks::Dots {
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dash}\"/>",
            path.join(" ")
        );
    }
    if line.marks != Marks::Line {
        for (x, y) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\"/>"
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Tick};

    fn figure(ticks: &[f64], marks: Marks) -> Figure {
        let ticks = ticks.iter().map(|at| Tick::new(*at, format!("at {at}")));
        let line = Line {
            style: 0,
            marks,
            points: vec![(1.0, 0.0), (10.0, 1.0), (100.0, 0.5)],
        };
        let panel = Panel {
            title: "a < b".to_owned(),
            below: "sizes".to_owned(),
            x: Axis::logarithmic(1.0, 100.0, ticks.collect()),
            y: Axis::linear(0.0, 1.0, Vec::new()),
            lines: vec![line],
        };
        Figure {
            bands: vec![Band {
                title: "R&D".to_owned(),
                panels: vec![panel],
                legend: vec!["\"it\"".to_owned()],
            }],
        }
    }

    #[test]
    fn names_are_escaped() {
        let svg = figure(&[1.0], Marks::Both).svg();
        for text in [">a &lt; b<", ">R&amp;D<", ">&quot;it&quot;<"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
    }

    #[test]
    fn labels_do_not_overlap() {
        let svg = figure(&[1.0, 1.1, 100.0], Marks::Both).svg();
        assert!(svg.contains(">at 1<") && svg.contains(">at 100<"));
        assert!(!svg.contains(">at 1.1<"), "{svg}");
        assert_eq!(svg.matches("stroke=\"black\"/>").count(), 3 + 1, "{svg}");
    }

    #[test]
    fn lines_and_dots_are_drawn_as_configured() {
        // The sample of a style in the legend has a line and two dots.
        for (marks, lines, dots) in [
            (Marks::Both, 2, 5),
            (Marks::Line, 2, 2),
            (Marks::Dots, 1, 5),
        ] {
            let svg = figure(&[], marks).svg();
            let count = |what: &str| svg.matches(what).count();
            assert_eq!((count("<polyline"), count("<circle")), (lines, dots));
        }
    }
}
