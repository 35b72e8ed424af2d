//! A small HTTP/1.1 server for tests, and a client, which gives access to the exact headers of a response and to
//! how the body ended. The client follows no redirects, adds only the header `Host`, and interprets
//! only the framing of a response. In contrast, the end-to-end tests use real clients.

mod connection;
mod request;
mod response;
pub mod server;

pub use connection::Connection;
pub use request::{Request, get, head};
pub use response::{End, Response, ResponseReader};
