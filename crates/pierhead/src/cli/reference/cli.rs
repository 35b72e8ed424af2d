//! Generates docs/reference/cli.md from the definition of the command line and the table of exit
//! codes.

use std::fmt::Write as _;

use clap::CommandFactory as _;
use clap::builder::StyledStr;

use super::{check_page, wrap, wrap_item};
use crate::cli::Cli;
use crate::cli::exit_code::ExitReason;

/// Returns the text as one paragraph, without terminal styles.
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

/// Returns the help, the default and the possible values of a flag, in full sentences.
fn facts(argument: &clap::Arg) -> String {
    let help = plain(argument.get_long_help().or(argument.get_help()));
    // The help text of a flag states a default that depends on the host, in the form in which clap
    // prints defaults.
    let (help, mut default) = match help.split_once(" [default: ") {
        Some((help, default)) => (help.to_owned(), default.trim_end_matches(']').to_owned()),
        None => (help, String::new()),
    };
    let is_flag = !argument.get_action().takes_values();
    if let [value] = argument.get_default_values()
        && !is_flag
    {
        default = format!("`{}`", value.to_string_lossy());
    }
    let mut text = sentence(&help);
    let values = argument.get_possible_values();
    if !values.is_empty() && !is_flag {
        let values = values.iter().map(|value| match value.get_help() {
            Some(help) => format!("`{}` ({})", value.get_name(), plain(Some(help))),
            None => format!("`{}`", value.get_name()),
        });
        let values: Vec<_> = values.collect();
        let _ = write!(text, " Values: {}.", values.join(", "));
    }
    if !default.is_empty() {
        let _ = write!(text, " Default: {}", sentence(&default));
    }
    text
}

/// Returns the environment variables in the help of `pierhead`, as a list.
fn environment(help: &str) -> String {
    let lines = help.lines().skip_while(|line| *line != "Environment:");
    let lines = lines.skip(1).take_while(|line| !line.is_empty());
    // A line with a deeper indent continues the line above.
    let mut rows = Vec::<String>::new();
    for line in lines {
        match rows.last_mut() {
            Some(row) if line.starts_with("   ") => *row += &format!(" {}", line.trim()),
            _ => rows.push(line.to_owned()),
        }
    }
    let row = |line: String| {
        let (names, meaning) = line.trim().split_once("   ")?;
        let names: Vec<_> = names.split(", ").map(|it| format!("`{it}`")).collect();
        let line = format!("- {}: {}", names.join(", "), sentence(meaning.trim()));
        Some(wrap_item(&line) + "\n")
    };
    rows.into_iter().filter_map(row).collect()
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
        let facts = facts(argument);
        let line = format!("- `{}`: {facts}", argument.to_string().trim());
        let _ = writeln!(text, "{}", wrap_item(&line));
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
fn the_page_has_every_command_variable_and_exit_code() {
    let mut command = Cli::command();
    command.build();
    let mut text = String::new();
    describe(&mut text, &mut command, "pierhead");
    let help = command.get_after_help().map(ToString::to_string);
    let variables = environment(&help.unwrap_or_default());
    assert!(
        !variables.is_empty(),
        "the help has no environment variables"
    );
    let _ = write!(text, "## Environment variables\n\n{variables}\n");
    text.push_str("## Exit codes\n\n- 0: success.\n");
    for (code, meaning) in ExitReason::TABLE {
        let line = format!("- {code}: {}", meaning.trim());
        let _ = writeln!(text, "{}", wrap_item(&line));
    }
    check_page("cli.md", &text);
}
