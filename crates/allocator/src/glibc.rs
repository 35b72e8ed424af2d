//! Limits the number of arenas of glibc's malloc by `mallopt(3)`.

/// Sets the maximum number of malloc arenas (`M_ARENA_MAX`). Returns whether glibc accepted this
/// maximum.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code)]
pub(crate) fn set_max_arenas(max_arenas: u8) -> bool {
    // SAFETY: mallopt takes two integers, locks the allocator itself and stores no pointer.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, max_arenas.into()) == 1 }
}

/// Does nothing: this C library has no arenas.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn set_max_arenas(_: u8) -> bool {
    false
}
