//! A small HTTP/1.1 client that hides nothing: exact headers, and how each body ended.
//!
//! It follows no redirect, adds no header but `Host`, and takes a response apart only as far as its
//! framing. For what real clients do there are real clients.

mod answer;
mod connection;
mod request;

pub use answer::{Answer, End, Response};
pub use connection::Connection;
pub use request::{Request, get, head};
