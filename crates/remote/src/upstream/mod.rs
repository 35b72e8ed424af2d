//! The hosts of one registry: their addresses, their health, retries and failover.

pub(crate) mod directory;
pub(crate) mod failover;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod limits;
pub(crate) mod mismatches;
pub(crate) mod retry;
pub(crate) mod session;
