//! Tests that cannot run everywhere: said aloud, and a failure in CI.

use std::env;
use std::fs::OpenOptions;
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
    let reason = format!("needs {needs}");
    assert!(!is_ci(), "CI must run every test, but {} {reason}", test());
    say(&reason);
    false
}

/// Whether this is CI, which has all that tests need.
#[must_use]
pub fn is_ci() -> bool {
    env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "false" | "0"))
}

/// The name of the test that runs.
#[must_use]
pub fn test() -> String {
    let thread = std::thread::current();
    thread.name().unwrap_or("a test").to_owned()
}

/// Says that this test is skipped: past the runner's capture to whoever looks on, and, as a line of the file that
/// `PIERHEAD_SKIPPED` names, to whoever counts. The runner counts it as passed.
pub fn say(reason: &str) {
    let test = test();
    // A closed stderr is nobody's loss.
    let _ = writeln!(
        std::io::stderr().lock(),
        "\n*** SKIPPED *** {test}: {reason}\n"
    );
    if let Some(path) = env::var_os("PIERHEAD_SKIPPED") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        // One write: tests run at once.
        let told = file.and_then(|mut file| file.write_all(format!("{test}\n").as_bytes()));
        assert!(told.is_ok(), "PIERHEAD_SKIPPED: {told:?}");
    }
}
