//! The kinds of objects in a generated workload: manifest, config or layer.

/// The kind of the object with a key of a `Workload`, stored in the two lowest bits of the key.
/// Policies do not use this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// The manifest of one version of a repository.
    Manifest,
    /// The config of one version of a repository.
    Config,
    /// A layer, which one or more images contain.
    Layer,
}

impl ObjectKind {
    pub(super) fn mark(self, key: u64) -> u64 {
        key & !3 | self as u64
    }

    /// Returns the kind of a key of a `Workload`.
    pub fn of(key: u64) -> Self {
        match key & 3 {
            0 => Self::Manifest,
            1 => Self::Config,
            _ => Self::Layer,
        }
    }
}
