//! The wire format of a bundle, a response with the file contents and patches that a client lacks.
//! `docs/formats/bundle.md` specifies the bytes.

pub mod bounded;
mod decoder;
mod frames;
mod header;
mod record;

pub use decoder::{Decoder, Event};
pub use frames::{Cursor, Frames, MAX_FRAME_LIST, MAX_FRAMES, MAX_MEMBERS, Sizes};
pub use header::{
    BaseImage, Header, MAX_BODY, MAX_DOCUMENTS, MAX_TOC, PRELUDE, Prelude, UsableContents, WireToc,
};
pub use record::{End, unsent};
