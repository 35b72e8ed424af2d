//! Kinds of the keys in a generated workload: manifest, config or layer.

/// The kind of a key of a `Workload`, stored in the two lowest bits of the key. Policies do not use
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The manifest of one version.
    Manifest,
    /// The config of one version.
    Config,
    /// A layer of one or more images.
    Layer,
}

impl Kind {
    pub(super) fn mark(self, key: u64) -> u64 {
        key & !3 | self as u64
    }

    /// The kind of a key of a `Workload`.
    pub fn of(key: u64) -> Self {
        match key & 3 {
            0 => Self::Manifest,
            1 => Self::Config,
            _ => Self::Layer,
        }
    }
}
