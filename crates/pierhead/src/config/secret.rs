//! The type of a secret value, such as a password: no code can print a value of this type, and its
//! memory is cleared after use.

use zeroize::Zeroizing;

/// A secret without `Debug` and `Display`. Dropping a secret clears its memory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<String>);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the secret as text. Only code that sends the secret to an upstream may call this
    /// function.
    pub(crate) fn reveal(&self) -> Zeroizing<String> {
        self.0.clone()
    }
}
