//! Lines over axes, drawn as SVG: what a replay and the benchmarks show of their figures. It knows no figure's meaning.

mod axis;
mod draw;

pub use axis::{Axis, Tick};

/// A drawing: bands, one below the other.
#[derive(Clone, Debug, Default)]
pub struct Figure {
    /// From the top.
    pub bands: Vec<Band>,
}

/// Panels beside one another, and one legend for all of them.
#[derive(Clone, Debug, Default)]
pub struct Band {
    /// Above all panels.
    pub title: String,
    /// From the left.
    pub panels: Vec<Panel>,
    /// What each style of [`Line::style`] stands for.
    pub legend: Vec<String>,
}

/// Lines over two axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Below it: what its horizontal axis counts.
    pub below: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical one.
    pub y: Axis,
    /// In the order in which they are drawn.
    pub lines: Vec<Line>,
}

/// Points of one kind.
#[derive(Clone, Debug)]
pub struct Line {
    /// Which colour and dash: the place in [`Band::legend`].
    pub style: usize,
    /// What is drawn of the points.
    pub marks: Marks,
    /// In units of the axes, from the left.
    pub points: Vec<(f64, f64)>,
}

/// What is drawn of points.
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
    /// The whole SVG document. What lies outside of an axis is drawn at its end.
    pub fn svg(&self) -> String {
        draw::document(self)
    }
}
