//! What the keys of a workload stand for.

/// What a key of a `Workload` stands for: its two lowest bits. A policy sees keys as equal or not, so
/// this tells it nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The manifest of one version.
    Manifest,
    /// Its config.
    Config,
    /// A layer, perhaps of many images.
    Layer,
}

impl Kind {
    pub(super) fn mark(self, key: u64) -> u64 {
        key & !3 | self as u64
    }

    /// What a key of a `Workload` stands for.
    pub fn of(key: u64) -> Self {
        match key & 3 {
            0 => Self::Manifest,
            1 => Self::Config,
            _ => Self::Layer,
        }
    }
}
