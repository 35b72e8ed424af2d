//! `cli.md`, from clap and the table of exit codes.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use clap::builder::StyledStr;

use super::{check_page, wrap};
use crate::cli::Cli;
use crate::exit_code::ExitReason;

/// Without the styles of a terminal, in one paragraph.
fn plain(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn sentence(text: &str) -> String {
    match text.ends_with(['.', ':', '!']) || text.is_empty() {
        true => text.to_owned(),
        false => format!("{text}."),
    }
}

fn describe(text: &mut String, command: &mut clap::Command, path: &str) {
    let about = command.get_long_about().or(command.get_about());
    let about = wrap(&sentence(&plain(about)));
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = write!(text, "## `{path}`\n\n{about}\n\n```text\n{usage}\n```\n\n");
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        if argument.is_hide_set() || matches!(id, "help" | "version") {
            continue;
        }
        let help = argument.get_long_help().or(argument.get_help());
        let help = sentence(&plain(help));
        let line = wrap(&format!("- `{}`: {help}", argument.to_string().trim()));
        let _ = writeln!(text, "{}", line.replace('\n', "\n  "));
    }
    if !text.ends_with("\n\n") {
        text.push('\n');
    }
    let children = command.get_subcommands_mut();
    for child in children.filter(|it| !it.is_hide_set() && it.get_name() != "help") {
        let path = format!("{path} {}", child.get_name());
        describe(text, child, &path);
    }
}

#[test]
fn the_page_has_every_command_and_exit_code() {
    let mut command = Cli::command();
    command.build();
    let mut text = String::new();
    describe(&mut text, &mut command, "pierhead");
    text.push_str("## Exit codes\n\n- 0: success.\n");
    for (code, meaning) in ExitReason::TABLE {
        let line = wrap(&format!("- {code}: {}", meaning.trim()));
        let _ = writeln!(text, "{}", line.replace('\n', "\n  "));
    }
    check_page("cli.md", &text);
}
