//! What policies are made of: tables, queues, heaps, sketches, hashes, and the envelope of saved states.
//!
//! A policy of another crate, such as those of the simulator, uses the same parts.

pub mod hash;
pub mod heap;
pub mod parameter;
pub mod queue_policy;
pub mod queues;
pub mod rank_policy;
pub mod saved;
pub mod sizes;
pub mod sketch;
pub mod table;
