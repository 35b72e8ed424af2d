//! Traces of requests: bytes in, accesses out. Whoever opens files is elsewhere.

mod error;
pub mod own;

pub use error::{Place, TraceError, Wrong};
