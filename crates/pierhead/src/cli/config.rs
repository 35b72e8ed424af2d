//! `pierhead config`: checks a configuration file, or prints a configuration.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Subcommand;

use super::exit_code::{CommandError, ExitReason};
use super::serve::{ProfileName, parse_profile};
use crate::config::environment::Environment;
use crate::config::{self, Config, Overrides};
use pierhead_host::machine::Machine;

/// The subcommands of `pierhead config`.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check a configuration file and the files that it names, without starting anything
    #[command(
        after_help = "Example:\n  pierhead config check /etc/pierhead/pierhead.toml &&\n      systemctl reload pierhead"
    )]
    Check {
        /// Configuration file to check
        file: PathBuf,
    },
    /// Print a configuration as a commented TOML file, with secrets masked
    #[command(
        after_help = "Examples:\n  pierhead config show --default > pierhead.toml\n  pierhead config show /etc/pierhead/pierhead.toml\n  pierhead config show --profile bluefield2"
    )]
    Show {
        /// Configuration file to print [default: none, which prints the defaults]
        file: Option<PathBuf>,
        /// Preset for the share of the host's CPU, memory and disk that pierhead takes: small,
        /// bluefield2, bluefield3, server or none [default: none]
        #[arg(long, value_name = "NAME", value_parser = parse_profile)]
        profile: Option<ProfileName>,
        /// Print the defaults, as a template of a configuration file
        #[arg(long, conflicts_with_all = ["file", "profile"])]
        default: bool,
    },
}

/// Runs a subcommand of `pierhead config`.
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
            // The file may be meant for another host. So a value that does not fit this host causes
            // only a warning.
            let unlimited = Machine::default();
            let config = load(Some(file), None, &unlimited)?;
            for warning in config::warnings(&config) {
                eprintln!("warning: {warning}");
            }
            if let Err(refused) = load(Some(file), None, &environment.machine) {
                let code = ExitReason::from(refused.fault()) as u8;
                eprintln!(
                    "warning: {refused}: `pierhead serve` exits with code {code} on this machine"
                );
            }
            match super::verbosity::is_quiet() {
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
