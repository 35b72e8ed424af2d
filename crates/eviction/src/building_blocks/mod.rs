//! Building blocks of eviction policies: tables, queues, heaps, sketches, hashes, and the file
//! format of saved states.
//!
//! The policies of the simulator in the crate `replay` use the same building blocks.

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
