//! A fast tier in front of a disk: what lies where, what is bounded, and what outlives what.

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

use gate::{ROOMY, all_fast};
use pierhead_cache::tier::{DiskTier, FastMedium, Options, WriteBack};
use pierhead_testkit::tier::{Faulty, MemoryTier, Op, conforms};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

#[test]
fn both_conform_wherever_fills_go() {
    let faulty = |op, pass| {
        let fast = Faulty::new(Arc::new(MemoryTier::default()));
        fast.fail(op, pass, u64::MAX, ENOSPC);
        Arc::new(fast) as Arc<dyn FastMedium>
    };
    let plain = || Arc::new(MemoryTier::default()) as Arc<dyn FastMedium>;
    let disk = || Arc::new(MemoryTier::default());
    let both = |fast, options| WriteBack::open(fast, disk(), options).unwrap();
    conforms(|| both(plain(), Options::new(ROOMY)));
    conforms(|| both(plain(), all_fast(ROOMY)));
    // No room from the beginning, or from somewhere on.
    conforms(|| both(plain(), all_fast(0)));
    conforms(|| both(plain(), all_fast(90_000)));
    conforms(|| both(faulty(Op::Write, 3), all_fast(ROOMY)));
    conforms(|| both(faulty(Op::Commit, 0), all_fast(ROOMY)));
    conforms(|| both(faulty(Op::Stage, 1), all_fast(ROOMY)));
}

#[test]
fn files_in_front_of_files_conform() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conforms(|| {
        count.set(count.get() + 1);
        let tier = |name: &str| {
            let path = folder.path().join(format!("{name}{}", count.get()));
            Arc::new(DiskTier::new(&path).unwrap())
        };
        WriteBack::open(tier("fast"), tier("disk"), all_fast(ROOMY)).unwrap()
    });
}
