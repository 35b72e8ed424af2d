//! Calls `mallopt(3)` of glibc to limit the arenas of malloc.

/// Sets `M_ARENA_MAX`: the maximum number of arenas.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(crate) fn set_max_arenas(max_arenas: u8) -> bool {
    // SAFETY: mallopt takes two integers, locks the allocator itself and keeps no pointer.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, max_arenas.into()) == 1 }
}

/// Does nothing: this C library has no arenas.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn set_max_arenas(_: u8) -> bool {
    false
}
