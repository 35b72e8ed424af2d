//! The hosts that serve one registry: which exist, which are healthy, and which one is asked next.

pub(crate) mod directory;
pub(crate) mod failover;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod limits;
pub(crate) mod mismatches;
pub(crate) mod retry;
pub(crate) mod session;
