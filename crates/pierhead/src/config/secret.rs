//! A value that is never shown.

use zeroize::Zeroizing;

/// No `Debug`, no `Display`; memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// For whoever presents it to an upstream, and nobody else.
    pub(crate) fn reveal(&self) -> Zeroizing<String> {
        self.0.clone()
    }
}
