//! Media for blobs: the disk, persistent memory, and a fast tier with write-back in front of the
//! disk.

mod disk;
pub mod placement;
mod pmem;
mod switch_reader;
mod trailer;
mod traits;
mod write_back;

pub use disk::{DiskTier, Step};
pub use pmem::PmemTier;
pub use trailer::{CHUNK, Sums, Trailer};
pub use traits::{Blob, Extent, FastMedium, MultiTier, ReadAt, Staged, Tier, TierEntry};
pub(crate) use traits::{is_damage, is_proven_damage};
pub use write_back::{Dirty, FastStat, Hint, Options, WriteBack};
