//! Limits the resources (connections, downloads, memory, request sizes) of one client, of one
//! registry, and of all together.
//!
//! Each limit has one name, which the response, the metric and the documentation share.

pub(crate) mod client_usage;
pub(crate) mod connections;
pub(crate) mod downloads;
pub(crate) mod head;
pub(crate) mod held_slots;
pub(crate) mod limit;
pub(crate) mod memory;
pub(crate) mod resource_limits;
pub(crate) mod share;
pub(crate) mod weak_table;
