//! Layers that lie.
