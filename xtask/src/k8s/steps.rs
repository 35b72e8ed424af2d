//! Runs the checks of `cargo xtask k8s`, which depend on each other, and counts passed and failed
//! checks by name.

use anyhow::Result;

use crate::check::test_count::TestCount;

/// Counts checks below one name.
pub(super) struct Steps<'a> {
    name: &'static str,
    count: &'a mut TestCount,
}

impl<'a> Steps<'a> {
    /// Runs checks that depend on earlier checks. The first failure ends the sequence.
    pub(super) fn run(
        name: &'static str,
        count: &'a mut TestCount,
        checks: impl FnOnce(&mut Steps<'a>) -> Result<()>,
    ) {
        let failed = count.failed;
        let mut steps = Steps { name, count };
        let outcome = checks(&mut steps);
        // An error between two checks counts as a failed check.
        if steps.count.failed == failed && outcome.is_err() {
            steps.count.note(name, outcome);
        }
    }

    /// Counts one check, and returns its outcome.
    ///
    /// # Errors
    /// The check failed.
    pub(super) fn note<T>(&mut self, what: &str, outcome: Result<T>) -> Result<T> {
        let name = format!("{}::{what}", self.name);
        match outcome {
            Ok(it) => {
                println!("  {name}");
                self.count.note(&name, Ok(()));
                Ok(it)
            }
            Err(error) => {
                let said = format!("{error:#}");
                self.count.note(&name, Err(error));
                Err(anyhow::anyhow!(said))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn each_failure_counts_once() {
        let mut count = TestCount::default();
        Steps::run("a", &mut count, |steps| {
            steps.note("good", Ok(()))?;
            steps.note("bad", Err(anyhow::anyhow!("it is")))?;
            steps.note("not reached", Ok(()))
        });
        Steps::run("b", &mut count, |_| bail!("between"));
        assert_eq!((count.passed, count.failed), (1, 2));
        assert_eq!(count.failures, ["a::bad", "b"]);
    }
}
