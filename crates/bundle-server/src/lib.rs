//! Delta bundles on the server: directory of images, packs and plans.

#![forbid(unsafe_code)]
