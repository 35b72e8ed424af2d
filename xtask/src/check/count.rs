//! How many tests ran, read from what Rust's test programs print.

use std::ops::AddAssign;

use anyhow::Result;

/// Tests by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Passed.
    pub(crate) passed: u64,
    /// Failed, or never came to an end.
    pub(crate) failed: u64,
    /// Not run.
    pub(crate) skipped: u64,
    /// Names of the failed ones.
    pub(crate) failures: Vec<String>,
    /// The program said that it was done: else it crashed, whatever it counted.
    pub(crate) ended: bool,
}

impl Count {
    /// Takes in one line of output.
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
            self.skipped += figure("ignored");
        } else if let Some(name) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.strip_suffix(" ... FAILED"))
        {
            self.failures.push(name.to_owned());
        }
    }
}

impl Count {
    /// Counts one check of ours, and tells why it failed.
    pub(crate) fn note(&mut self, name: &str, outcome: Result<()>) {
        self.ended = true;
        match outcome {
            Ok(()) => self.passed += 1,
            Err(error) => {
                println!("  {name}: {error:#}");
                self.failed += 1;
                self.failures.push(name.to_owned());
            }
        }
    }
}

impl AddAssign<&Count> for Count {
    fn add_assign(&mut self, other: &Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures.iter().cloned());
        self.ended |= other.ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_libtest_prints() {
        let mut count = Count::default();
        for line in [
            "running 5 tests",
            "test a::b ... ok",
            "test a::c ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
        ] {
            count.line(line);
        }
        assert_eq!(
            count,
            Count {
                passed: 3,
                failed: 1,
                skipped: 1,
                failures: vec!["a::c".to_owned()],
                ended: true,
            }
        );
    }

    #[test]
    fn a_program_that_stops_in_the_middle_has_not_ended() {
        let mut count = Count::default();
        count.line("test a::b ... ok");
        assert!(!count.ended);
    }
}
