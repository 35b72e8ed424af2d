//! Tests the number of arenas of a process with many threads. The limit applies to the whole
//! process, so this test is a program of its own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

/// Size and alignment in bytes of the blocks that hold each arena of glibc except the main one
/// (`HEAP_MAX_SIZE`).
const HEAP_BYTES: usize = 64 << 20;

#[test]
fn threads_share_the_arenas() {
    const THREADS: usize = 32;
    assert!(pierhead_allocator::limit_arenas(2));
    let barrier = Barrier::new(THREADS);
    let heaps: BTreeSet<usize> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let value = Box::new([1_u8; 512]);
                    // All threads hold memory at the same time, so no thread takes the arena of
                    // another thread.
                    barrier.wait();
                    value.as_ptr().addr() / HEAP_BYTES
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    // The main arena may extend over two blocks.
    assert!(heaps.len() <= 3, "{} heaps", heaps.len());
}
