//! Runs other programs to completion, and reports their errors with their output.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Runs `command` without input, and returns its standard output.
///
/// # Errors
/// The command cannot be started, or fails. The error has the last lines of its standard error.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let name = describe(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}\n{}", output.status, tail(&output.stderr, 20));
    }
    Ok(output.stdout)
}

/// Runs `command` as [`output`] does, and returns its output as text.
///
/// # Errors
/// As [`output`].
pub(crate) fn text(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&output(command)?).into_owned())
}

/// The command line as a user would type it.
pub(crate) fn describe(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The last `count` lines of `bytes`.
pub(crate) fn tail(bytes: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
