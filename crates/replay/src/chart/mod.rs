//! Line charts as SVG, for the results of replays and benchmarks.

mod axis;
mod draw;

pub use axis::{Axis, Tick};

/// A chart, which consists of bands (rows of panels), one below the other.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// The bands of the chart, from top to bottom.
    pub bands: Vec<Band>,
}

/// A row of panels side by side, with one legend.
#[derive(Clone, Debug, Default)]
pub struct Band {
    /// Title above all panels of the band.
    pub title: String,
    /// The panels of the band, from left to right.
    pub panels: Vec<Panel>,
    /// Names of the line styles: element `n` is the name of [`Line::style`] `n`.
    pub legend: Vec<String>,
}

/// A panel: the lines of one diagram, with two axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Title above this panel.
    pub title: String,
    /// Label below the horizontal axis.
    pub below: String,
    /// The horizontal axis of the panel.
    pub x: Axis,
    /// The vertical axis of the panel.
    pub y: Axis,
    /// The lines of the panel, in drawing order.
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

/// Which parts of a line are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Draw a line, and a dot at each point.
    Both,
    /// Draw only the line.
    Line,
    /// Draw only the dots.
    Dots,
}

impl Figure {
    /// Returns the chart as an SVG document. A value outside of an axis is drawn at the end of the
    /// axis.
    pub fn svg(&self) -> String {
        draw::document(self)
    }
}
