//! The words of the OCI specs, parsed at the edge and never strings inside.
//!
//! No I/O, no async, no clock. Every parser here takes hostile input: lengths are bounded
//! before anything is allocated, and a value that exists is a value that the spec allows.

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
