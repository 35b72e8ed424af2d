//! The cache as its callers see it.

use std::sync::Arc;

use bytes::Bytes;
use pierhead_eviction::Policy;
use pierhead_oci::{Digest, MediaType};
use prometheus_client::registry::Registry;

use crate::{Config, Content, Error, Fill, Names, Object};

/// A handle; clones share everything. All methods may be called from async code unless they say
/// that they block.
#[derive(Clone)]
pub struct Cache {
    _inner: Arc<()>,
}

/// What [`Cache::claim`] found.
pub enum Claim {
    /// Complete and verified, on disk.
    Hit(Object),
    /// Nobody has it: fetch, write to the [`Fill`]. The content tails that very fill.
    Leader(Fill, Content),
    /// Somebody is fetching it; the content tails that fill.
    Follower(Content),
}

/// One committed blob, as listed.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which.
    pub digest: Digest,
    /// Bytes of content.
    pub size: u64,
    /// Only manifests and other documents have one.
    pub media_type: Option<MediaType>,
    /// Last access, seconds since 1970.
    pub accessed: u64,
    /// Whether a pin keeps it.
    pub pinned: bool,
}

/// How full the cache is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    /// Committed blobs.
    pub blobs: u64,
    /// Their bytes on disk.
    pub used: u64,
    /// Bytes reserved by fills under way, partial fills and files deleted but still read.
    pub reserved: u64,
    /// The bound.
    pub capacity: u64,
    /// Fills under way.
    pub fills: u64,
    /// Bytes that pins keep.
    pub pinned: u64,
}

impl Cache {
    /// Opens (or makes) the data folder: takes its lock, checks its version, reconciles catalog and
    /// files, feeds `policy` in the order of persisted accesses. Blocks; cost: one directory walk.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::Version`], [`Error::Io`]. A damaged catalog is no error: it is rebuilt.
    pub fn open(_config: Config, _policy: Box<dyn Policy<Digest>>) -> Result<Self, Error> {
        todo!()
    }

    /// A committed blob, if it is there. Counts as an access.
    pub async fn get(&self, _digest: &Digest) -> Result<Option<Object>, Error> {
        todo!()
    }

    /// Whether it is committed, or a fill of it is under way. No access, no I/O.
    pub fn contains(&self, _digest: &Digest) -> bool {
        todo!()
    }

    /// Single flight: exactly one caller per digest becomes the leader at a time.
    pub async fn claim(&self, _digest: &Digest) -> Result<Claim, Error> {
        todo!()
    }

    /// Stores a small document (manifest, tag list) whole: verified, durable when this returns.
    pub async fn put(&self, _digest: &Digest, _media_type: &MediaType, _content: Bytes) -> Result<Object, Error> {
        todo!()
    }

    /// Names: which digest a tag stood for, and since when that is known.
    pub fn names(&self) -> &Names {
        todo!()
    }

    /// Keeps these digests (present or to come) from eviction, under one label: a complete reference.
    /// Durable when this returns. Replaces an older pin of the same label.
    pub async fn pin(&self, _label: &str, _digests: Vec<Digest>) -> Result<(), Error> {
        todo!()
    }

    /// Takes a pin back; `false` when there was none.
    pub async fn unpin(&self, _label: &str) -> Result<bool, Error> {
        todo!()
    }

    /// All labels with what they pin.
    pub fn pins(&self) -> Vec<(String, Vec<Digest>)> {
        todo!()
    }

    /// Up to `limit` committed blobs whose digest is greater than `after`, in order of digest.
    pub fn list(&self, _after: Option<Digest>, _limit: usize) -> Vec<Entry> {
        todo!()
    }

    /// How full it is now.
    pub fn stat(&self) -> Stat {
        todo!()
    }

    /// Changes the bound while running; shrinking evicts at once, as far as pins and readers allow.
    pub async fn set_capacity(&self, _capacity: u64) {
        todo!()
    }

    /// Evicts until at most `target` bytes are used; returns bytes freed.
    pub async fn prune(&self, _target: u64) -> Result<u64, Error> {
        todo!()
    }

    /// Reads one blob in full against its digest; a damaged one is removed. `Ok(false)` when it was
    /// damaged, `Ok(true)` when it is sound or not there.
    pub async fn verify(&self, _digest: &Digest) -> Result<bool, Error> {
        todo!()
    }

    /// Writes what is pending (access ticks) and stops background work. Called once, at the end.
    pub async fn close(&self) {
        todo!()
    }

    /// Registers the metrics of the cache; the caller gives the prefix.
    pub fn register(&self, _registry: &mut Registry) {
        todo!()
    }
}
