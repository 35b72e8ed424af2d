//! `pierhead config`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Subcommand;

use super::serve::{ProfileName, cli_profile};
use crate::config::{self, Config, Overrides};
use crate::environment::Environment;
use crate::exit_code::CommandError;
use pierhead_host::machine::Machine;

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
        after_help = "Examples:\n  pierhead config show --default > pierhead.toml\n  pierhead config show /etc/pierhead/pierhead.toml\n  pierhead config show --profile bluefield2"
    )]
    Show {
        /// The file; without one, the defaults
        file: Option<PathBuf>,
        /// As `serve --profile` on this machine
        #[arg(long, value_name = "NAME", value_parser = cli_profile)]
        profile: Option<ProfileName>,
        /// The defaults, as a file to start from
        #[arg(long, conflicts_with_all = ["file", "profile"])]
        default: bool,
    },
}

/// Runs it.
pub(crate) fn run(command: &ConfigCommand, environment: &Environment) -> Result<(), CommandError> {
    let load = |file, profile: Option<ProfileName>, machine: &Machine| {
        let overrides = Overrides {
            profile: profile.map(|it| it.0),
            ..Overrides::default()
        };
        config::load(file, &overrides, &environment.default_data, machine)
    };
    let text = match command {
        ConfigCommand::Check { file } => {
            // It may be for another machine.
            let another = Machine::default();
            let config = load(Some(file), None, &another)?;
            for warning in config::warnings(&config) {
                eprintln!("warning: {warning}");
            }
            if let Err(refused) = load(Some(file), None, &environment.machine) {
                eprintln!("warning: {refused}");
            }
            match crate::verbosity::is_quiet() {
                true => String::new(),
                false => format!("{}: good\n", file.display()),
            }
        }
        ConfigCommand::Show {
            file: None,
            profile: None,
            ..
        } => config::show(&Config::with_data(environment.default_data.clone())),
        ConfigCommand::Show { file, profile, .. } => {
            config::show(&load(file.as_deref(), *profile, &environment.machine)?)
        }
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
