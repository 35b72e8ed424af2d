//! Frames on their way into a draft: copies, records as they are, and literal ranges that are put together.

use super::plan_file::{Draft, PlanFile};
use crate::pack::Encoder;
use pierhead_bundle::{BaseSlice, Coding, Frame, MAX_FRAME, Slice};
use pierhead_toc::Error;

/// As a frame of several members may have.
const MEMBERS: usize = 4096;

/// Frames on their way into a draft.
pub(super) struct FrameWriter<'a> {
    draft: &'a mut Draft,
    pub(super) frames: Vec<Frame>,
    encoder: Encoder,
    /// Literal members that wait for more, and their bytes.
    members: Vec<Slice>,
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

    /// How many bytes these would be in a frame of their own.
    pub(super) fn coded(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        Ok(self.encoder.encode(bytes)?.1.len() as u64)
    }

    /// Bytes of a member that come literally, with those of others.
    pub(super) fn literal(&mut self, slice: Slice, bytes: &[u8]) -> Result<(), Error> {
        let len = (self.bytes.len() + bytes.len()) as u64;
        if len > MAX_FRAME || self.members.len() >= MEMBERS {
            self.flush()?;
        }
        self.members.push(slice);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// A range that the worker has.
    pub(super) fn copy(&mut self, slice: Slice, piece: BaseSlice) -> Result<(), Error> {
        // Ranges of a content stand in order.
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
            && last.bases.len() < MEMBERS
        {
            member.len += slice.len;
            last.bases.push(piece);
            return Ok(());
        }
        self.draft.nowhere();
        self.frames.push(Frame {
            members: vec![slice],
            bases: vec![piece],
            coding: Coding::Copy,
        });
        Ok(())
    }

    /// A frame as it is.
    pub(super) fn whole(&mut self, fresh: &PlanFile, nth: u32, frame: Frame) -> Result<(), Error> {
        self.flush()?;
        self.draft.same(fresh, nth)?;
        self.frames.push(frame);
        Ok(())
    }

    /// What waits for more.
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
