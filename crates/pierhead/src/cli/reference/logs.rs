//! The generated part of `docs/reference/logs.md`: every message of the daemon at level `info` and
//! above, read from the source code.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::check_page;
use super::limits::sources;

/// The crates that log in the daemon.
const CRATES: &[&str] = &[
    "bundle-server",
    "cache",
    "host",
    "pierhead",
    "proxy",
    "remote",
];
const LEVELS: &[&str] = &["error", "warn", "info"];
/// Minimum number of messages. Fewer messages mean that the test reads no files.
const MIN_MESSAGES: usize = 80;

/// Returns the message of a call of a log macro: its first string that is no value of a field.
/// `call` begins after the opening parenthesis.
fn message(call: &str) -> Option<String> {
    let mut depth = 1;
    let mut previous = ',';
    let mut letters = call.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '"' => {
                let mut text = String::new();
                while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
                    match letter {
                        '\\' => match letters.next() {
                            Some('\n') => {
                                let rest = letters.as_str().trim_start();
                                letters = rest.chars();
                            }
                            escaped => text.extend(escaped),
                        },
                        letter => text.push(letter),
                    }
                }
                if depth == 1 && previous == ',' {
                    return Some(text);
                }
            }
            _ => {}
        }
        if depth == 0 {
            return None;
        }
        if !letter.is_whitespace() {
            previous = letter;
        }
    }
    None
}

/// Replaces each placeholder by `…`.
fn without_placeholders(message: &str) -> String {
    let mut text = String::new();
    let mut is_placeholder = false;
    for letter in message.chars() {
        match letter {
            '{' => {
                is_placeholder = true;
                text.push('…');
            }
            '}' => is_placeholder = false,
            letter if !is_placeholder => text.push(letter),
            _ => {}
        }
    }
    text.replace('|', "\\|")
}

/// Returns each message with its most severe level.
fn messages() -> BTreeMap<String, &'static str> {
    let mut files = Vec::new();
    for name in CRATES {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        sources(&Path::new(root).join(name).join("src"), &mut files);
    }
    let mut found = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let product = text.split("#[cfg(test)]\nmod tests {").next();
        for level in LEVELS {
            let start = format!("tracing::{level}!(");
            let product = product.unwrap_or_default();
            for (at, _) in product.match_indices(&start) {
                let message = message(&product[at + start.len()..]);
                let message = without_placeholders(&message.unwrap_or_default());
                let has_words = message.chars().any(char::is_alphabetic);
                if has_words && message != "…, repeatedly" {
                    found.entry(message).or_insert(*level);
                }
            }
        }
    }
    found
}

#[test]
fn the_list_of_log_messages_is_current() {
    let messages = messages();
    assert!(messages.len() >= MIN_MESSAGES, "{messages:#?}");
    let mut text = "## All messages\n\n| level | message |\n|---|---|\n".to_owned();
    for (message, level) in &messages {
        let _ = writeln!(text, "| {level} | {message} |");
    }
    check_page("logs.md", &text);
}

#[test]
fn a_message_is_the_first_string_that_is_no_value() {
    for (call, expected) in [
        (
            r#"%error, part = "x", "image pull failed");"#,
            Some("image pull failed"),
        ),
        ("\n    \"a {}; \\\n     b\", f(\"x\"));", Some("a {}; b")),
        (r#"error = f(")", "y"), "z""#, Some("z")),
        (r#"%error); other("no")"#, None),
    ] {
        assert_eq!(message(call).as_deref(), expected, "{call}");
    }
    assert_eq!(without_placeholders("a {b:.1?} {}"), "a … …");
}
