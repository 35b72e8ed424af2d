//! Tests that compare the generated pages in docs/reference/ with the code.
//!
//! `cargo xtask docs --write` runs these tests with `PIERHEAD_WRITE_DOCS=1`; with this variable,
//! the tests write the pages instead of comparing them.

mod cli;
mod configuration;
mod http_api;
mod limits;
mod logs;

use std::fs;
use std::path::PathBuf;

/// Separates the manual introduction of a page from its generated part.
const MARKER: &str =
    "<!-- Generated from the code by `cargo xtask docs --write`. Edit the code instead. -->";

fn page(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    PathBuf::from(root).join(name)
}

/// Compares the generated part of a page with `generated`, or writes that part.
///
/// # Panics
/// The page differs, and `PIERHEAD_WRITE_DOCS` is not set.
fn check_page(name: &str, generated: &str) {
    let written = fs::read_to_string(page(name)).unwrap_or_default();
    let introduction = written.split(MARKER).next().unwrap_or_default();
    check_file(name, &format!("{introduction}{MARKER}\n\n{generated}"));
}

/// Compares a generated file with `expected`, or writes the file.
///
/// # Panics
/// The file differs, and `PIERHEAD_WRITE_DOCS` is not set.
fn check_file(name: &str, expected: &str) {
    let path = page(name);
    if fs::read_to_string(&path).is_ok_and(|found| found == expected) {
        return;
    }
    if std::env::var_os("PIERHEAD_WRITE_DOCS").is_some() {
        fs::write(&path, expected).expect("the page is writable");
        return;
    }
    panic!("docs/reference/{name} is not current: run `cargo xtask docs --write`");
}

/// Wraps text to 100 columns.
fn wrap(text: &str) -> String {
    wrap_with_indent(text, "")
}

/// Wraps an item of a list to 100 columns. `text` begins with `- `.
fn wrap_item(text: &str) -> String {
    wrap_with_indent(text, "  ")
}

/// Wraps text to 100 columns. The lines after the first begin with `indent`.
fn wrap_with_indent(text: &str, indent: &str) -> String {
    const MAX_COLUMNS: usize = 100;
    let mut words = text.split_whitespace();
    let mut lines = vec![words.next().unwrap_or_default().to_owned()];
    for word in words {
        let line = lines.last_mut().expect("a line");
        if line.chars().count() + 1 + word.chars().count() > MAX_COLUMNS {
            lines.push(format!("{indent}{word}"));
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n")
}
