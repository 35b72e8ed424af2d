//! Tests that cannot run everywhere: said aloud, and a failure in CI.

use std::env;
use std::io::Write as _;

/// Whether a test may go on; without what it needs it is skipped, said where the runner's capture does not hide it.
///
/// # Panics
/// In CI (`CI=true`), where a test that does not run is a failure.
#[must_use]
#[track_caller]
pub fn unless(needs: &str, has: bool) -> bool {
    if has {
        return true;
    }
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let ci = env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "false" | "0"));
    assert!(!ci, "CI must run every test, but {test} needs {needs}");
    // Past the capture of `eprintln!`; a closed stderr is nobody's loss.
    let _ = writeln!(
        std::io::stderr().lock(),
        "\n*** SKIPPED *** {test}: needs {needs}\n"
    );
    false
}
