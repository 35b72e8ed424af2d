//! Limits the number of arenas of the C library's malloc, and thereby the memory that freed blocks
//! occupy.
//!
//! glibc gives each thread an arena of its own, up to eight arenas per core. Memory that a thread
//! frees stays in the thread's arena. If the background threads of a daemon do large work one after
//! another, the arenas together hold the peak memory of all threads. With few arenas, the threads
//! reuse one another's memory.

#![deny(unsafe_code)]

mod glibc;

/// Limits the number of allocation arenas of this process. Threads that run already keep their
/// arenas. Returns whether the allocator accepted the limit. C libraries other than glibc have no
/// arenas.
pub fn limit_arenas(max_arenas: u8) -> bool {
    glibc::set_max_arenas(max_arenas)
}
