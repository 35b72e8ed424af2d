//! Traces of requests: bytes in, accesses out. Whoever opens files is elsewhere.

mod access_log;
pub mod csv;
mod error;
mod fields;
mod format;
mod held;
mod ibm;
mod key;
pub mod oracle;
mod parsed;
mod reader;
pub mod request_log;
#[cfg(test)]
mod tests;

pub use error::{Place, TraceError, Wrong};
pub use format::{Format, UnknownFormat};
pub use held::{Held, Holder};
pub use reader::{Notes, Reader};

pub(crate) use parsed::Parsed;
