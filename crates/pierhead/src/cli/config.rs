//! `pierhead config`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Subcommand;

use crate::config::{self, Config, Overrides};
use crate::environment::Environment;
use crate::failure::Failure;
use crate::wiring;

/// What to do with the configuration.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read a file and all that it names, as `serve` would; open nothing
    #[command(
        after_help = "Example:\n  pierhead config check /etc/pierhead/pierhead.toml && systemctl reload pierhead"
    )]
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the configuration in effect as a commented TOML file, secrets masked
    #[command(
        after_help = "Examples:\n  pierhead config show --default > pierhead.toml\n  pierhead config show /etc/pierhead/pierhead.toml"
    )]
    Show {
        /// The file; without one, the defaults
        file: Option<PathBuf>,
        /// The defaults, as a file to start from
        #[arg(long, conflicts_with = "file")]
        default: bool,
    },
}

/// Runs it.
pub(crate) fn run(command: &ConfigCommand, environment: &Environment) -> Result<(), Failure> {
    let load = |file| config::load(Some(file), &Overrides::default(), &environment.default_data);
    let text = match command {
        ConfigCommand::Check { file } => {
            for warning in wiring::warnings(&load(file)?, Some(file)) {
                eprintln!("warning: {warning}");
            }
            format!("{}: good\n", file.display())
        }
        ConfigCommand::Show {
            file: Some(file), ..
        } => config::show(&load(file)?),
        ConfigCommand::Show { file: None, .. } => {
            config::show(&Config::with_data(environment.default_data.clone()))
        }
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
