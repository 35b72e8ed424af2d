//! Builds container images without a container daemon: trees of files become layers, and layers an
//! OCI layout.

pub(crate) mod layer;
pub(crate) mod layout;
