//! What belongs on a fast tier and what stays there longest: pure rules over plain figures, weighed against one another.

mod advisor;
mod hot_files;
mod layer_aware;
mod sharing_runs;
mod value;
mod weighed;

#[cfg(test)]
mod tests;

pub(crate) use advisor::Advisor;
pub use hot_files::{HotImageFiles, Start, Step, Temperature};
pub(crate) use layer_aware::TAIL;
pub use layer_aware::{LayerAware, Pace, Progress};
pub use sharing_runs::SharingRuns;
pub use value::{Speed, Value};
pub use weighed::{Facts, Verdict, Weights};

/// Where the bytes of a fill go first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Placement {
    /// To the fast tier, and from there to the disk behind the client's back.
    Fast,
    /// Straight to the disk.
    #[default]
    Disk,
}
