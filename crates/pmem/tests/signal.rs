//! Tests that a SIGBUS that no region caused keeps its usual effect: a SIGBUS that a process sends,
//! and a SIGBUS at an address outside of all regions. Each case runs in a child process, because
//! the signal may end the process.

use std::ffi::c_int;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};

use pierhead_pmem::{Config, Region};

/// Runs this test program as a child process, which runs only the test `name`.
fn child(name: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("this program");
    Command::new(program)
        .args([name, "--exact", "--ignored", "--test-threads=1"])
        .output()
        .expect("started")
        .status
}

fn with_a_region() -> (tempfile::TempDir, Region) {
    let folder = tempfile::tempdir().expect("a folder");
    let config = Config {
        path: folder.path().join("tier"),
        size: 4096,
    };
    let region = Region::open(&config).expect("made");
    (folder, region)
}

/// Raises SIGBUS: reads a page beyond the end of a truncated file.
fn fault() {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = tempfile::tempfile().expect("a file");
    // SAFETY: a new mapping at an address that the kernel chooses affects no existing memory.
    let page = unsafe {
        mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    let page = page.expect("mapped").cast::<u8>();
    // SAFETY: the address is mapped; the read raises SIGBUS on purpose.
    unsafe { page.read_volatile() };
}

extern "C" fn exit_with_42(_: c_int) {
    // SAFETY: _exit is allowed in a handler.
    unsafe { libc::_exit(42) };
}

fn set_sigbus_handler(handler: usize) {
    // SAFETY: `exit_with_42` has the signature of a handler; SIG_DFL and SIG_IGN are valid values.
    unsafe { libc::signal(libc::SIGBUS, handler) };
}

#[test]
fn a_sent_signal_ends_the_process() {
    assert_eq!(child("child_receives_sigbus").signal(), Some(libc::SIGBUS));
    assert_eq!(
        child("child_with_sig_dfl_receives_sigbus").signal(),
        Some(libc::SIGBUS)
    );
}

#[test]
fn an_ignored_signal_stays_ignored() {
    assert!(child("child_ignores_sigbus").success());
}

#[test]
fn a_fault_outside_of_regions_ends_the_process() {
    assert_eq!(child("child_faults").signal(), Some(libc::SIGBUS));
    assert_eq!(
        child("child_with_sig_dfl_faults").signal(),
        Some(libc::SIGBUS)
    );
}

#[test]
fn a_fault_outside_of_regions_reaches_the_previous_handler() {
    assert_eq!(child("child_with_own_handler_faults").code(), Some(42));
}

#[test]
#[ignore = "a child of a test above"]
fn child_receives_sigbus() {
    let _region = with_a_region();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS)
        .expect("sent");
}

#[test]
#[ignore = "a child of a test above"]
fn child_with_sig_dfl_receives_sigbus() {
    set_sigbus_handler(libc::SIG_DFL);
    child_receives_sigbus();
}

#[test]
#[ignore = "a child of a test above"]
fn child_ignores_sigbus() {
    set_sigbus_handler(libc::SIG_IGN);
    child_receives_sigbus();
}

#[test]
#[ignore = "a child of a test above"]
fn child_faults() {
    let _region = with_a_region();
    fault();
}

#[test]
#[ignore = "a child of a test above"]
fn child_with_sig_dfl_faults() {
    set_sigbus_handler(libc::SIG_DFL);
    child_faults();
}

#[test]
#[ignore = "a child of a test above"]
fn child_with_own_handler_faults() {
    let handler: extern "C" fn(c_int) = exit_with_42;
    set_sigbus_handler(handler as usize);
    child_faults();
}
