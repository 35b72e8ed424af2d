//! Platforms, and the choice of one from an index.

/// What an index says of an entry, in the words of GOOS and GOARCH.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Platform {
    /// `linux`, …
    pub os: String,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `v8`, …
    pub variant: Option<String>,
}
