//! Configuration files of Docker, containerd, podman and CRI-O: plan, apply and undo changes.

#![forbid(unsafe_code)]
