//! The types of the OCI specifications (digest, descriptor, manifest, platform, reference,
//! endpoint, error), and their parsers. Also the units of sizes, rates and durations.
//!
//! Callers parse text into these types where the text enters the program. The crate has no I/O, no
//! async functions and no clock. Every parser expects hostile input: a parser checks lengths before
//! it allocates memory, and returns only values that the specifications allow.

#![forbid(unsafe_code)]

pub mod descriptor;
pub mod digest;
pub mod endpoint;
pub mod error;
pub mod manifest;
pub mod media_type;
pub mod name;
pub mod platform;
pub mod reference;
pub mod registry;
pub mod routes;
pub mod units;

pub use descriptor::Descriptor;
pub use digest::{Algorithm, Digest, Hasher};
pub use endpoint::Endpoint;
pub use error::{ErrorBody, ErrorCode, ParseError};
pub use manifest::{Body, Manifest};
pub use media_type::MediaType;
pub use name::{Name, Repository, Tag};
pub use platform::Platform;
pub use reference::{Reference, Target};
pub use registry::Registry;
