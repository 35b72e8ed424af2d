//! Limits the resources (connections, downloads, memory, request sizes) of one client, of one
//! registry, and of all clients together.
//!
//! Each limit has one name: responses, metrics and the documentation use the same name.

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
pub(crate) mod work_slots;
