//! What is in a layer and in an image: layer index, table of contents, file digests.

#![forbid(unsafe_code)]
