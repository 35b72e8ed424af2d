//! Skips tests that cannot run on this machine, with a message. In CI, a skipped test fails.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;

/// Returns `has`. If `has` is `false`, prints that the test is skipped because this machine lacks
/// `needs`. The message appears even if the test runner captures the output of tests.
///
/// # Panics
/// Panics in CI (`CI=true`) if `has` is false, since a skipped test is a failure there.
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

/// Whether the tests run in CI, which has everything that tests need.
#[must_use]
pub fn is_ci() -> bool {
    env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "false" | "0"))
}

/// Returns the name of the running test.
#[must_use]
pub fn test() -> String {
    let thread = std::thread::current();
    thread.name().unwrap_or("a test").to_owned()
}

/// Reports that this test is skipped: on the terminal (even if the test runner captures the output
/// of tests), and as a line in the file `PIERHEAD_SKIPPED`. The test runner counts the test as
/// passed.
pub fn say(reason: &str) {
    let test = test();
    // An error of the write, such as for a closed stderr, is ignored.
    let _ = writeln!(
        std::io::stderr().lock(),
        "\n*** SKIPPED *** {test}: {reason}\n"
    );
    if let Some(path) = env::var_os("PIERHEAD_SKIPPED") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        // Each line is one write, because tests run in parallel.
        let text = file.and_then(|mut file| file.write_all(format!("{test}\n").as_bytes()));
        assert!(text.is_ok(), "PIERHEAD_SKIPPED: {text:?}");
    }
}
