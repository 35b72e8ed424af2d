//! The reference pages: what is generated from the code, held against docs/reference/.
//!
//! `cargo xtask docs --write` runs these tests with `PIERHEAD_WRITE_DOCS=1`, which writes the pages.

mod cli;
mod configuration;
mod http_api;
mod limits;

use std::fs;
use std::path::PathBuf;

/// Text above this line is written by hand, text below it by this program.
const MARKER: &str =
    "<!-- Generated from the code by `cargo xtask docs --write`. Edit the code instead. -->";

fn page(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    PathBuf::from(root).join(name)
}

/// Compares a generated page with `generated`, or writes it.
///
/// # Panics
/// When they differ.
fn check_page(name: &str, generated: &str) {
    let written = fs::read_to_string(page(name)).unwrap_or_default();
    let by_hand = written.split(MARKER).next().unwrap_or_default();
    check_file(name, &format!("{by_hand}{MARKER}\n\n{generated}"));
}

/// Compares a generated file with `wanted`, or writes it.
///
/// # Panics
/// When they differ.
fn check_file(name: &str, wanted: &str) {
    let path = page(name);
    if fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
        return;
    }
    if std::env::var_os("PIERHEAD_WRITE_DOCS").is_some() {
        fs::write(&path, wanted).expect("the page is writable");
        return;
    }
    panic!("docs/reference/{name} is not current: run `cargo xtask docs --write`");
}

/// Text in lines that fit a page.
fn wrap(text: &str) -> String {
    const MAX_COLUMNS: usize = 100;
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("a line");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > MAX_COLUMNS {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.join("\n")
}
