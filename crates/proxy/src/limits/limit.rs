//! The limits that a request or a connection can reach, with their metric labels and error
//! messages.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// A limit that a request or connection reached. Each limit is a value of the metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limit {
    Connections,
    ConnectionsPerClient,
    ResponseMemory,
    ResponseMemoryPerClient,
    DownloadsPerClient,
    DownloadsPerRegistry,
    Downloads,
    UpstreamRequests,
    Headers,
    Uri,
    Body,
    Stalled,
}

impl Limit {
    pub(crate) const ALL: [Self; 12] = [
        Self::Connections,
        Self::ConnectionsPerClient,
        Self::ResponseMemory,
        Self::ResponseMemoryPerClient,
        Self::DownloadsPerClient,
        Self::DownloadsPerRegistry,
        Self::Downloads,
        Self::UpstreamRequests,
        Self::Headers,
        Self::Uri,
        Self::Body,
        Self::Stalled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerClient => "connections_per_client",
            Self::ResponseMemory => "response_memory",
            Self::ResponseMemoryPerClient => "response_memory_per_client",
            Self::DownloadsPerClient => "downloads_per_client",
            Self::DownloadsPerRegistry => "downloads_per_registry",
            Self::Downloads => "downloads",
            Self::UpstreamRequests => "upstream_requests",
            Self::Headers => "headers",
            Self::Uri => "uri",
            Self::Body => "body",
            Self::Stalled => "stalled",
        }
    }
}

/// Formats the message for the client, which names the limit and what an operator can change.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => {
                "all connections available to this address are in use: raise limits.connections, or try again"
            }
            Self::ConnectionsPerClient => {
                "this address has its maximum number of connections, and all are in use: raise limits.connections (one address gets an eighth of them), or use fewer"
            }
            Self::ResponseMemory => {
                "too many response bytes wait for clients to read them: raise limits.memory, or try again"
            }
            Self::ResponseMemoryPerClient => {
                "too many response bytes wait for this address to read them: raise limits.memory (one address gets half of the memory for responses), or try again"
            }
            Self::DownloadsPerClient => {
                "this address waits for too many downloads: raise limits.downloads (one address gets half of them), or try again"
            }
            Self::DownloadsPerRegistry => {
                "all download slots of this registry are in use: raise limits.downloads (one registry gets three quarters of them), or try again"
            }
            Self::Downloads => {
                "all download slots are in use, so pierhead sent no request to the registry: raise limits.downloads, or try again"
            }
            Self::UpstreamRequests => "too many requests wait for upstreams; try again",
            Self::Headers => "the request has too many headers, or its headers are too long",
            Self::Uri => "the path is too long",
            Self::Body => "the body of the request is longer than 1 MiB",
            Self::Stalled => "the client does not read its response",
        })
    }
}

impl EncodeLabelValue for Limit {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}
