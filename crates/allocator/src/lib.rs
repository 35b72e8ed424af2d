//! Settings of the C library's memory allocator.
//!
//! glibc gives each thread an arena of its own, up to eight per core, and an arena keeps the memory
//! that its threads freed. A daemon whose background threads take turns at large work then holds
//! the peak of each thread. With few arenas the threads reuse one another's memory.

#![deny(unsafe_code)]

mod glibc;

/// Limits the number of allocation arenas of this process, for threads that start from now on.
/// Returns whether the allocator accepted the limit; other C libraries have no arenas.
pub fn limit_arenas(max_arenas: u8) -> bool {
    glibc::set_max_arenas(max_arenas)
}
