//! Every tier keeps the same promises.

use pierhead_cache::tier::DiskTier;
use pierhead_testkit::tier::{Faulty, MemoryTier, conforms};

#[test]
fn the_disk_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conforms(|| {
        count.set(count.get() + 1);
        DiskTier::new(&folder.path().join(count.get().to_string())).unwrap()
    });
}

#[test]
fn memory_conforms() {
    conforms(MemoryTier::default);
}

#[test]
fn a_faulty_tier_without_faults_conforms() {
    conforms(|| Faulty::new(std::sync::Arc::new(MemoryTier::default())));
}
