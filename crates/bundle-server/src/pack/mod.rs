//! Stores file contents as compressed frames in append-only files (packs), each content once. The
//! packs together stay within a byte budget.
//!
//! A pack is two files: the records of its frames in wire format, and an index with the members of
//! each frame. `docs/formats/disk.md` specifies both files. If packs are lost, indexing makes them
//! again from the layers.

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
