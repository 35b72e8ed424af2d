//! Container images put together by hand: trees of files that become layers, and layers that become a layout.

pub(crate) mod layer;
pub(crate) mod layout;
