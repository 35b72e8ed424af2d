//! Tests of a fast tier in front of a disk: placement, limits, write-back, promotion (copies of
//! requested blobs from the disk to the fast tier), restarts and damage. This file runs the
//! conformance suite of tiers; its modules have the other tests.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

#[path = "../common/mod.rs"]
mod common;

mod anything;
mod damage;
mod fills;
mod gate;
mod promote;
mod restart;
mod room;
mod writes_back;

use std::sync::Arc;

use gate::{AMPLE_CAPACITY, all_fast};
use pierhead_cache::tier::{DiskTier, FastMedium, Options, WriteBack};
use pierhead_testkit::tier::{Faulty, MemoryTier, Op, conforms};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[test]
fn both_tiers_together_pass_the_conformance_suite() {
    let faulty = |op, pass| {
        let fast = Faulty::new(Arc::new(MemoryTier::default()));
        fast.fail(op, pass, u64::MAX, ENOSPC);
        Arc::new(fast) as Arc<dyn FastMedium>
    };
    let plain = || Arc::new(MemoryTier::default()) as Arc<dyn FastMedium>;
    let disk = || Arc::new(MemoryTier::default());
    let both = |fast, options| WriteBack::open(fast, disk(), options).unwrap();
    conforms(|| both(plain(), Options::new(AMPLE_CAPACITY)));
    conforms(|| both(plain(), all_fast(AMPLE_CAPACITY)));
    // The fast tier has no room, either from the start or after some writes.
    conforms(|| both(plain(), all_fast(0)));
    conforms(|| both(plain(), all_fast(90_000)));
    conforms(|| both(faulty(Op::Write, 3), all_fast(AMPLE_CAPACITY)));
    conforms(|| both(faulty(Op::Commit, 0), all_fast(AMPLE_CAPACITY)));
    conforms(|| both(faulty(Op::Stage, 1), all_fast(AMPLE_CAPACITY)));
}

#[test]
fn a_disk_in_front_of_a_disk_passes_the_conformance_suite() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conforms(|| {
        count.set(count.get() + 1);
        let tier = |name: &str| {
            let path = folder.path().join(format!("{name}{}", count.get()));
            Arc::new(DiskTier::new(&path).unwrap())
        };
        WriteBack::open(tier("fast"), tier("disk"), all_fast(AMPLE_CAPACITY)).unwrap()
    });
}
