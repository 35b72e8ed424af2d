//! Limits the memory that the C library's malloc keeps for threads.
//!
//! glibc gives each thread an arena of its own, up to eight arenas per core. An arena keeps the
//! memory that its threads freed. If the background threads of a daemon do large work in turn, the
//! arenas together hold the peak of each thread. With few arenas, the threads reuse one another's
//! memory.

#![deny(unsafe_code)]

mod glibc;

/// Limits the number of allocation arenas of this process, for threads that start from now on.
/// Returns whether the allocator accepted the limit. C libraries other than glibc have no arenas.
pub fn limit_arenas(max_arenas: u8) -> bool {
    glibc::set_max_arenas(max_arenas)
}
