//! The bundle extension: what a worker lacks of an image in one answer, single files ahead of it, traces of starts.
//!
//! Whoever may pull an image's manifest and layers may have what is in them, and nobody else: each question is put to
//! `access` as the pulls that it stands for.

mod answer;
mod arrivals;
mod blobs;
mod hot;
mod pulls;
mod records;
mod stored;
mod turns;
mod wish;

pub(crate) use answer::Asked;
pub(crate) use arrivals::Arrivals;
pub(crate) use blobs::CacheBlobs;
pub(crate) use hot::Touches;
pub(crate) use pulls::Pulls;
pub(crate) use records::{Range, Records};
pub(crate) use stored::offer as offer_stored;
pub(crate) use turns::PlanSlots;
pub(crate) use wish::Wish;

/// The answer to `_oci/ext/discover`.
pub(crate) const EXTENSIONS: &str = concat!(
    r#"{"extensions":[{"name":"_pierhead","description":"Delta bundles of unmodified images: only the file contents "#,
    r#"that a worker lacks.","url":"docs/formats/bundle.md","endpoints":["_pierhead/bundle","_pierhead/file","#,
    r#""_pierhead/trace"]}]}"#
);
