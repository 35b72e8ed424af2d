//! The content-addressed cache: verified ingest, single flight, tiers, names, pins, reclaim.
//!
//! It is handed bytes and cannot fetch. What it shows is complete, verified and durable; what is
//! on its way is visible only to readers that tail the fill and know that they do.

mod cache;
mod config;
mod content;
mod error;
mod fill;
mod names;
pub mod tier;

pub use cache::{Cache, Claim, Entry, Stat};
pub use config::Config;
pub use content::{Content, Object, Tail};
pub use error::Error;
pub use fill::Fill;
pub use names::{Name, Names, Record};
