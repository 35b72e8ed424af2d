//! `pierhead completions` and `pierhead man`: print shell completions and manual pages, which
//! derive from the definition of the command line.

use std::io::{self, Write as _};

use clap::CommandFactory as _;

use super::Cli;
use super::exit_code::CommandError;

/// Runs `pierhead completions SHELL`.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), CommandError> {
    // Writes to memory first: the generator panics if it writes to a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "pierhead", &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}

/// Runs `pierhead man [COMMAND…]`.
pub(crate) fn man(path: &[String]) -> Result<(), CommandError> {
    // The section VERSION of a manual page has the version only. `pierhead --version` prints more
    // lines.
    let mut command = Cli::command().long_version(env!("CARGO_PKG_VERSION"));
    command.build();
    for name in path {
        let Some(inner) = command.find_subcommand(name) else {
            return Err(CommandError::Usage(format!(
                "pierhead has no command {:?}: see `pierhead --help`",
                path.join(" ")
            )));
        };
        command = inner.clone();
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    io::stdout().write_all(&page)?;
    Ok(())
}
