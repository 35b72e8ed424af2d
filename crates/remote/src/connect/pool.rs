//! The pool of HTTP connections to upstreams. A pool uses one [`Connector`].

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioTimer;

use crate::connect::Connector;
use crate::connect::spawner::Spawner;

/// A pool of connections that are kept alive and shared by requests.
pub(crate) type HttpPool = Client<Connector, Full<Bytes>>;

/// Maximum number of bytes of one read from an upstream's socket, and of the headers of a response.
/// Larger buffers would cost memory for each fetch and would not make the fetch faster.
const READ_BUFFER: usize = 128 << 10;

/// Time after which an idle connection to an upstream is closed. This idle time is shorter than the
/// keep-alive time of common servers.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

/// Creates a pool that uses HTTP/1.1 only. One TCP connection for each blob is faster than HTTP/2,
/// and the kernel limits the receive window of each connection.
pub(crate) fn http_pool(connector: Connector, spawner: &Spawner) -> HttpPool {
    Client::builder(spawner.clone())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(8)
        .http1_max_buf_size(READ_BUFFER)
        .build(connector)
}
