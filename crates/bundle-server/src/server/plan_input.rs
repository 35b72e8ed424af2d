//! What planning knows about one request before it selects frames.

use pierhead_oci::Digest;

use super::bundle_header::LoadedBase;
use super::context::Context;
use super::plan_deadline::PlanDeadline;
use pierhead_toc::ImageToc;

/// The wanted image and the base images of one request, the contents that the worker needs, and the
/// deadline of the plan.
pub(super) struct PlanInput<'a> {
    pub(super) context: &'a Context,
    pub(super) want: &'a Digest,
    /// The TOC (table of contents) of the wanted image.
    pub(super) toc: &'a ImageToc,
    pub(super) base_images: &'a [LoadedBase],
    /// One flag per content number of the wanted image: whether the worker needs the content.
    pub(super) needed: &'a [bool],
    pub(super) deadline: PlanDeadline<'a>,
}
