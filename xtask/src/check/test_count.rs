//! Counts passed, failed and skipped tests: in the output of Rust's test programs, and of the
//! checks that xtask itself runs.

use std::{ops::AddAssign, time::Duration};

use anyhow::Result;

use crate::console::say;

/// Reason of an ignored test that another test starts as a child process: it runs, so it is not
/// skipped.
const CHILD: &str = "a child of";

/// Numbers and names of tests, by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestCount {
    /// Number of passed tests.
    pub(crate) passed: u64,
    /// Number of tests that failed or did not end.
    pub(crate) failed: u64,
    /// Names of tests that could not run on this machine. The test program counts them as passed or
    /// as ignored.
    pub(crate) skipped: Vec<String>,
    /// Names of failed tests.
    pub(crate) failures: Vec<String>,
    /// Whether the test program printed its last line. A program without a last line has crashed.
    pub(crate) ended: bool,
    /// CPU time of the test program and its child processes.
    pub(crate) cpu_time: Duration,
}

impl TestCount {
    /// Parses one line of output and counts it.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.ended = true;
            let figure = |what: &str| -> u64 {
                rest.split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
                    .unwrap_or(0)
            };
            self.passed += figure("passed");
            self.failed += figure("failed");
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        } else if let Some((name, reason)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... ignored"))
            && !reason.contains(CHILD)
        {
            self.skipped.push(name.to_owned());
        }
    }

    /// Counts tests as skipped. `names` has one name per line, of tests that ended without a check.
    pub(crate) fn skips(&mut self, names: &str) {
        for name in names.lines() {
            self.passed = self.passed.saturating_sub(1);
            self.skipped.push(name.to_owned());
        }
    }
}

impl TestCount {
    /// Runs one check of xtask itself, counts it, and prints its result.
    pub(crate) fn tell(&mut self, name: &str, check: impl FnOnce() -> Result<String>) {
        let outcome = check().map(|what| say!("  {name}: {what}"));
        self.note(name, outcome);
    }

    /// Counts one check of xtask itself, and prints the error if it failed.
    pub(crate) fn note(&mut self, name: &str, outcome: Result<()>) {
        self.ended = true;
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                say!("  {name}: {error:#}");
                self.failed += 1;
                self.failures.push(name.to_owned());
            }
        }
    }
}

impl AddAssign<&TestCount> for TestCount {
    fn add_assign(&mut self, other: &TestCount) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped.extend(other.skipped.iter().cloned());
        self.failures.extend(other.failures.iter().cloned());
        self.ended |= other.ended;
        self.cpu_time += other.cpu_time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_libtest_prints() {
        let mut count = TestCount::default();
        for line in [
            "running 5 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test a::d ... ignored, too slow",
            "test a::e ... ignored, a child of a test above",
            "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 2 filtered out; finished in 0.01s",
        ] {
            count.line(line);
        }
        count.skips("a::f\n");
        assert_eq!(
            count,
            TestCount {
                passed: 2,
                failed: 1,
                skipped: vec!["a::d".to_owned(), "a::f".to_owned()],
                failures: vec!["a::c".to_owned()],
                ended: true,
                cpu_time: Duration::ZERO,
            }
        );
    }

    #[test]
    fn a_program_that_stops_in_the_middle_has_not_ended() {
        let mut count = TestCount::default();
        count.line("test a::b ... ok");
        assert!(!count.ended);
    }
}
