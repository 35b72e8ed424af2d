//! The number of arenas of a process with many threads. The limit is one of the whole process, so
//! that this test has a program of its own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

/// An arena of glibc, except the main one, lies in blocks of this size and alignment
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
                    // All threads hold memory at one time: no thread takes the arena of another one.
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
    // The main arena may reach over two blocks.
    assert!(heaps.len() <= 3, "{} heaps", heaps.len());
}
