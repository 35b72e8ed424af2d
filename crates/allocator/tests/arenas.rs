//! Tests that `limit_arenas` limits the number of malloc arenas of a process with many threads. The
//! limit applies to the whole process, so this test is a program of its own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

/// Size and alignment in bytes of a glibc heap (`HEAP_MAX_SIZE`). Every arena except the main arena
/// consists of such heaps.
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
                    // All threads hold their memory until the last thread has allocated, so no
                    // thread takes the arena of another thread.
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
    // The main arena is not aligned to a block, so it may extend over two blocks.
    assert!(heaps.len() <= 3, "{} heaps", heaps.len());
}
