//! HTTP/1.1 client of a worker: its connections block the calling thread, carry one request at a
//! time, and count every received byte.
//!
//! The client of crate `remote` is async and connects to many registries. This client connects to
//! the one server that the user named. This client runs in threads that also decode and write
//! files, and needs little memory for each connection.

mod body;
mod connection;
mod message;
mod server;
mod session;
#[cfg(test)]
pub(crate) mod test_server;
#[cfg(test)]
mod tests;
mod tls;
mod url;

pub(crate) use body::Body;
pub(crate) use message::{Request, Response};
pub use server::{Authorization, Server};
pub(crate) use session::{RetryBackoff, Session};
pub use tls::TlsConfigs;
pub use url::Url;
