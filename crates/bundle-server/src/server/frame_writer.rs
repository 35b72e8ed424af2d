//! Writes the frames (groups of contents that are compressed together) of a bundle plan that reuses
//! chunks of base images. There are three types of frames: copies from base images, unchanged
//! packed frames, and new frames with the bytes that the worker lacks.

use super::plan_file::{Draft, PlanFile};
use crate::Error;
use crate::pack::Encoder;
use pierhead_bundle::{BaseSlice, Coding, Frame, MAX_FRAME, Slice};

/// Maximum number of members of a new frame, and of base slices of a copy.
const MAX_MEMBERS: usize = 4096;

/// Writes frames into a [`Draft`], in order.
pub(super) struct FrameWriter<'a> {
    draft: &'a mut Draft,
    pub(super) frames: Vec<Frame>,
    encoder: Encoder,
    /// Ranges of contents whose bytes are in the frame in progress.
    members: Vec<Slice>,
    /// The bytes of the ranges in `members`.
    bytes: Vec<u8>,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(draft: &'a mut Draft) -> Result<Self, Error> {
        Ok(Self {
            draft,
            frames: Vec::new(),
            encoder: Encoder::new(pierhead_bundle::patch::Level::FAST.number().into())?,
            members: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// Returns the length of `bytes` after compression as one frame.
    pub(super) fn compressed_len(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        Ok(self.encoder.encode(bytes)?.1.len() as u64)
    }

    /// Adds a range of a content, with its bytes, to the frame in progress.
    pub(super) fn literal(&mut self, slice: Slice, bytes: &[u8]) -> Result<(), Error> {
        let len = (self.bytes.len() + bytes.len()) as u64;
        if len > MAX_FRAME || self.members.len() >= MAX_MEMBERS {
            self.flush()?;
        }
        self.members.push(slice);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Adds a range of a content that the worker copies from a base image.
    pub(super) fn copy(&mut self, slice: Slice, piece: BaseSlice) -> Result<(), Error> {
        // The ranges of one content must stay in order, so a pending range of the same content is
        // written first.
        if self
            .members
            .iter()
            .any(|member| member.content == slice.content)
        {
            self.flush()?;
        }
        if self.members.is_empty()
            && let Some(last) = self
                .frames
                .last_mut()
                .filter(|it| it.coding == Coding::Copy)
            && let [member] = &mut last.members[..]
            && member.content == slice.content
            && member.offset + member.len == slice.offset
            && member.len + slice.len <= MAX_FRAME
            && last.bases.len() < MAX_MEMBERS
        {
            member.len += slice.len;
            last.bases.push(piece);
            return Ok(());
        }
        self.draft.without_record();
        self.frames.push(Frame {
            members: vec![slice],
            bases: vec![piece],
            coding: Coding::Copy,
        });
        Ok(())
    }

    /// Adds an unchanged frame of the fresh plan (the plan for workers without base images).
    pub(super) fn whole(&mut self, fresh: &PlanFile, nth: u32, frame: Frame) -> Result<(), Error> {
        self.flush()?;
        self.draft.copy_record(fresh, nth)?;
        self.frames.push(frame);
        Ok(())
    }

    /// Compresses the frame in progress and adds it to the plan.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.members.is_empty() {
            return Ok(());
        }
        let (coding, payload) = self.encoder.encode(&self.bytes)?;
        self.draft.payload(coding, payload)?;
        self.frames.push(Frame {
            members: std::mem::take(&mut self.members),
            bases: Vec::new(),
            coding,
        });
        self.bytes.clear();
        Ok(())
    }
}
