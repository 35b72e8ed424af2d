//! The HTTP servers of the proxy: accept connections, parse requests, and send responses.

pub(crate) mod body;
pub(crate) mod client_progress;
pub(crate) mod client_stream;
pub(crate) mod connection;
pub(crate) mod handler;
pub(crate) mod http1;
pub(crate) mod hyper_server;
pub(crate) mod line_ends;
pub(crate) mod listener;
pub(crate) mod peer;
pub(crate) mod phase;
pub(crate) mod range;
pub(crate) mod representation;
pub(crate) mod request_body;
pub(crate) mod respond;
pub(crate) mod route;
pub(crate) mod tls;
