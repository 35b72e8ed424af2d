//! `pierhead config`: checks a configuration file, or prints a configuration.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Subcommand;

use super::serve::{ProfileName, parse_profile};
use crate::config::{self, Config, Overrides};
use crate::environment::Environment;
use crate::exit_code::CommandError;
use pierhead_host::machine::Machine;

/// The `config` commands.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file and the files that it names, without starting anything
    #[command(
        after_help = "Example:\n  pierhead config check /etc/pierhead/pierhead.toml && systemctl reload pierhead"
    )]
    Check {
        /// Configuration file
        file: PathBuf,
    },
    /// Print a configuration as a commented TOML file, with secrets masked
    #[command(
        after_help = "Examples:\n  pierhead config show --default > pierhead.toml\n  pierhead config show /etc/pierhead/pierhead.toml\n  pierhead config show --profile bluefield2"
    )]
    Show {
        /// Configuration file [default: none, which prints the defaults]
        file: Option<PathBuf>,
        /// Share of the host that pierhead takes: small, bluefield2, bluefield3, server or none [default: none]
        #[arg(long, value_name = "NAME", value_parser = parse_profile)]
        profile: Option<ProfileName>,
        /// Print the defaults, as a template of a configuration file
        #[arg(long, conflicts_with_all = ["file", "profile"])]
        default: bool,
    },
}

/// Runs a `config` command.
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
            // The checked file may be for another host, so a value that does not fit this host is a
            // warning only.
            let unlimited = Machine::default();
            let config = load(Some(file), None, &unlimited)?;
            for warning in config::warnings(&config) {
                eprintln!("warning: {warning}");
            }
            if let Err(refused) = load(Some(file), None, &environment.machine) {
                eprintln!("warning: {refused}");
            }
            match crate::verbosity::is_quiet() {
                true => String::new(),
                false => format!("{}: valid\n", file.display()),
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
