//! Parsers of recorded request traces: the caller passes the bytes of a trace file, and the parser
//! returns the requests. The parsers open no files.

mod access_log;
pub mod csv;
mod error;
mod fields;
mod format;
mod ibm;
mod key;
pub mod oracle;
mod parsed;
mod reader;
pub mod request_log;
mod request_trace;
#[cfg(test)]
mod tests;

pub use error::{Location, TraceError, TraceErrorKind};
pub use format::{Format, UnknownFormat};
pub use reader::{Reader, TraceCounts};
pub use request_trace::{RequestTrace, RequestTraceBuilder};

pub(crate) use parsed::Parsed;
