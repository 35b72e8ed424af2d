//! A small HTTP/1.1 client for tests. It gives access to exact headers, and to the way in which
//! each body ended. It follows no redirects, adds only the header `Host`, and interprets only the
//! framing of a response. The end-to-end tests use real clients, too.

mod connection;
mod request;
mod response;

pub use connection::Connection;
pub use request::{Request, get, head};
pub use response::{End, Response, ResponseReader};
