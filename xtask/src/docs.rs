//! `cargo xtask docs`: checks or writes the generated pages in docs/reference, by running tests of
//! the programs.

use std::process::Stdio;

use anyhow::{Result, bail};

use crate::console::say;
use crate::exec;

/// Runs the tests that check the generated pages. With `write`, the tests write the pages.
///
/// # Errors
/// A page is not current, or a test cannot run.
pub(crate) fn run(write: bool) -> Result<()> {
    // The test `routes::` compares a page with the routes of the daemon, and writes no page.
    let routes = (!write).then_some(("pierhead", "--test=daemon", "routes::"));
    let pages = [
        ("pierhead", "--bin=pierhead", "reference::"),
        (
            "pierhead",
            "--test=daemon",
            "metrics::every_metric_follows_the_naming_rules",
        ),
        (
            "pierhead-replay",
            "--bin=pierhead-replay",
            "cli::tests::the_reference_page_is_current",
        ),
    ];
    for (package, target, filter) in pages.into_iter().chain(routes) {
        let mut test = exec::cargo();
        test.args(["test", "--quiet", "--package", package, target, "--"])
            .arg(filter);
        if write {
            test.env("PIERHEAD_WRITE_DOCS", "1");
        }
        let output = test.stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        say!("{text}");
        if text.contains("running 0 tests") {
            bail!("{package} has no test {filter}");
        }
        if !output.status.success() {
            bail!("the pages of docs/reference are not current: run `cargo xtask docs --write`");
        }
    }
    Ok(())
}
