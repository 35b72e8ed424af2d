//! The limits that a request or a connection can reach, and what the client reads about them.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

/// Which limit was reached: the label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Limit {
    Connections,
    ConnectionsPerClient,
    BytesInFlight,
    BytesPerClient,
    FetchesPerClient,
    FetchesPerRegistry,
    Downloads,
    Fetches,
    Headers,
    Uri,
    Body,
    Stalled,
}

impl Limit {
    pub(crate) const ALL: [Self; 12] = [
        Self::Connections,
        Self::ConnectionsPerClient,
        Self::BytesInFlight,
        Self::BytesPerClient,
        Self::FetchesPerClient,
        Self::FetchesPerRegistry,
        Self::Downloads,
        Self::Fetches,
        Self::Headers,
        Self::Uri,
        Self::Body,
        Self::Stalled,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionsPerClient => "connections_per_client",
            Self::BytesInFlight => "response_memory",
            Self::BytesPerClient => "response_memory_per_client",
            Self::FetchesPerClient => "downloads_per_client",
            Self::FetchesPerRegistry => "downloads_per_registry",
            Self::Downloads => "downloads",
            Self::Fetches => "fetches",
            Self::Headers => "headers",
            Self::Uri => "uri",
            Self::Body => "body",
            Self::Stalled => "stalled",
        }
    }
}

/// What the client is told: which limit, and what an operator can do about it.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => {
                "all connections available to this address are in use: raise limits.connections, or try again"
            }
            Self::ConnectionsPerClient => {
                "this address has its maximum number of connections, and all are in use: raise limits.connections (one address gets an eighth of them), or use fewer"
            }
            Self::BytesInFlight => {
                "too many bytes wait for clients to take them: raise limits.memory, or try again"
            }
            Self::BytesPerClient => {
                "too many bytes wait for this address to take them: raise limits.memory (one address gets half of what responses have), or try again"
            }
            Self::FetchesPerClient => {
                "this address waits for too many downloads: raise limits.downloads (one address gets half of them), or try again"
            }
            Self::FetchesPerRegistry => {
                "all download slots of this registry are in use: raise limits.downloads (one registry gets three quarters of them), or try again"
            }
            Self::Downloads => {
                "all download slots are in use, so the registry was not asked: raise limits.downloads, or try again"
            }
            Self::Fetches => "too many requests wait for upstreams; try again",
            Self::Headers => {
                "the request's headers are too many or too long"
            }
            Self::Uri => "the path is too long",
            Self::Body => "the body of the request is longer than 1 MiB",
            Self::Stalled => "the client takes nothing",
        })
    }
}

impl EncodeLabelValue for Limit {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}
