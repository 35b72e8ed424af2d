//! A secret value: it cannot be printed, and its memory is cleared.

use zeroize::Zeroizing;

/// A secret without `Debug` and `Display`. Dropping it clears its memory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the secret. Only code that sends it to an upstream may call this.
    pub(crate) fn reveal(&self) -> Zeroizing<String> {
        self.0.clone()
    }
}
