//! Line charts as SVG, for the results of replays and benchmarks.

mod axis;
mod draw;

pub use axis::{Axis, Tick};

/// A chart: bands, one below the other.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// The bands, from top to bottom.
    pub bands: Vec<Band>,
}

/// Panels side by side, with one legend.
#[derive(Clone, Debug, Default)]
pub struct Band {
    /// Title above all panels.
    pub title: String,
    /// The panels, from left to right.
    pub panels: Vec<Panel>,
    /// Name of each [`Line::style`].
    pub legend: Vec<String>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Title above the panel.
    pub title: String,
    /// Label of the horizontal axis.
    pub below: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines, in drawing order.
    pub lines: Vec<Line>,
}

/// A line through points, or points alone.
#[derive(Clone, Debug)]
pub struct Line {
    /// Index of the line's colour and dashes, and of its name in [`Band::legend`].
    pub style: usize,
    /// Whether the line, the points, or both are drawn.
    pub marks: Marks,
    /// The points in units of the axes, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// The drawn parts of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// A line, and a dot at each point.
    Both,
    /// A line alone.
    Line,
    /// Dots alone.
    Dots,
}

impl Figure {
    /// The SVG document. Values outside of an axis are drawn at its end.
    pub fn svg(&self) -> String {
        draw::document(self)
    }
}
