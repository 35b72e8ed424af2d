//! The upstreams: for each registry its hosts, their addresses and health, retries, and failover
//! from one host to the next.

pub(crate) mod failover;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod limits;
pub(crate) mod mismatches;
pub(crate) mod retry;
pub(crate) mod session;
pub(crate) mod upstreams;
