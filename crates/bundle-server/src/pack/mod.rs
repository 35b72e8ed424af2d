//! Contents as compressed frames, kept once in append-only files, within a budget of bytes.
//!
//! A pack is two files: records one after the other, as they go over the wire, and beside it an index that says what is
//! in each. `docs/formats/disk.md` has them byte by byte. Everything here may be lost: it is made again from the layers.

mod coding;
mod contents;
mod disk;
mod file;
mod frame;
mod frame_index;
mod index;
mod kind;
mod optimize;
mod packing;
mod packs;
mod record_location;
mod recovery;
mod writer;

pub use coding::{Encoder, decode};
pub use contents::Contents;
pub use disk::DiskChange;
pub use file::PackFile;
pub(crate) use frame::are_whole;
pub use frame::{ContentRange, MAX_MEMBERS, PackedFrame, is_fast};
pub use frame_index::{FrameIndex, MemoryFrameIndex};
pub use optimize::optimize;
pub use packing::{PackItem, PackResult, PackSettings, pack};
pub use packs::{PackConfig, PackStats, Packs};
pub use record_location::RecordLocation;
pub use writer::Writer;
