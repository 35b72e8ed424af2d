//! Edits TOML text: inserts a key, and keeps all other bytes.
//!
//! An edit inserts a key into the text, and parses the result again. If the result does not have
//! the same values as before plus the new key, the edit is refused.
//!
//! `toml_edit` 0.25.18 does not keep every byte, so this module does not use it. `toml_edit` writes
//! each line end as LF and adds a last line end (toml-rs/toml issue 1158), so an undo would not
//! restore the file. An edit in place needs only the spans of keys and values, which the crate
//! `toml` provides.

use toml::Table;
use toml::de::{DeTable, DeValue};

use crate::error::TextProblem;

/// Parses TOML text.
///
/// # Errors
/// The error names the line with the syntax error.
pub(crate) fn parse(text: &str) -> Result<Table, TextProblem> {
    toml::from_str(text).map_err(|error| TextProblem {
        line: error.span().map(|span| line_of(text, span.start)),
        message: error.message().to_owned(),
    })
}

/// Returns the number of the line that contains a byte, counted from 1.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// Returns the line end that the text uses: CRLF or LF.
pub(crate) fn newline(text: &str) -> &'static str {
    if text.contains("\r\n") { "\r\n" } else { "\n" }
}

/// Returns the value at a path of keys.
pub(crate) fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a toml::Value> {
    let (last, parents) = path.split_last()?;
    let mut table = table;
    for key in parents {
        table = table.get(*key)?.as_table()?;
    }
    table.get(*last)
}

/// Returns the text with `path` set to the string `value`.
///
/// The edit tries three places in this order: the place of the present value, the line below the
/// header of its table, and a new table at the end.
///
/// # Errors
/// There is no place at which the edit would change only this value.
pub(crate) fn set(text: &str, path: &[&str], value: &str) -> Result<String, TextProblem> {
    let before = parse(text)?;
    let mut expected = before.clone();
    let refuse = |line| TextProblem {
        line,
        message: format!(
            "{} cannot be inserted here without other changes: write {} = {} there by hand",
            path.join("."),
            path.last().unwrap_or(&""),
            quoted(value)
        ),
    };
    insert(&mut expected, path, value).ok_or_else(|| refuse(None))?;
    if before == expected {
        return Ok(text.to_owned());
    }
    let end = newline(text);
    let (key, parents) = path.split_last().ok_or_else(|| refuse(None))?;
    let line = format!("{} = {}{end}", bare_or_quoted(key), quoted(value));
    let mut candidates = Vec::new();
    let spans = Spans::of(text, path);
    if let Some(span) = spans.value {
        candidates.push(splice(text, span.start, span.end, &quoted(value)));
    }
    if let Some(header) = spans.table {
        let after = text[header..].find('\n').map(|at| header + at + 1);
        let (at, first) = after.map_or((text.len(), end), |at| (at, ""));
        let indent = indent_of(text, header);
        candidates.push(splice(text, at, at, &format!("{first}{indent}  {line}")));
    }
    let header: Vec<_> = parents.iter().map(|key| bare_or_quoted(key)).collect();
    let gap = match text {
        "" => "",
        text if text.ends_with('\n') => end,
        _ => &[end, end].concat(),
    };
    candidates.push(format!("{text}{gap}[{}]{end}  {line}", header.join(".")));
    candidates
        .into_iter()
        .find(|candidate| parse(candidate).is_ok_and(|found| found == expected))
        .ok_or_else(|| refuse(spans.table.map(|header| line_of(text, header))))
}

/// Returns the text with a block of lines inserted before the first `[header]` of the table
/// `table`. If there is no such header, the block is inserted at the end.
///
/// # Errors
/// The result does not have exactly the old values and the values of the block.
pub(crate) fn put_first(text: &str, table: &str, block: &str) -> Result<String, TextProblem> {
    let mut expected = parse(text)?;
    let end = newline(text);
    let block = block.replace('\n', end);
    merge(&mut expected, parse(&block)?);
    let is_header = |line: &str| {
        let line = line.trim_start();
        line.starts_with(&format!("[{table}.")) || line.starts_with(&format!("[{table}]"))
    };
    let mut offset = 0;
    let mut first = None;
    for line in text.split_inclusive('\n') {
        if is_header(line) {
            first = Some(offset);
            break;
        }
        offset += line.len();
    }
    let gap = match text {
        "" => "",
        text if text.ends_with('\n') => end,
        _ => &[end, end].concat(),
    };
    first
        .map(|at| splice(text, at, at, &format!("{block}{end}")))
        .into_iter()
        .chain([format!("{text}{gap}{block}")])
        .find(|candidate| parse(candidate).is_ok_and(|found| found == expected))
        .ok_or_else(|| TextProblem {
            line: None,
            message: format!(
                "this cannot be added without other changes; add it by hand:\n{block}"
            ),
        })
}

/// The positions of the value at a path, and of the header of its table.
#[derive(Default)]
struct Spans {
    value: Option<std::ops::Range<usize>>,
    table: Option<usize>,
}

impl Spans {
    fn of(text: &str, path: &[&str]) -> Self {
        let mut spans = Self::default();
        let Ok(document) = DeTable::parse(text) else {
            return spans;
        };
        let mut table = document.get_ref();
        for (index, key) in path.iter().enumerate() {
            let Some((name, value)) = table.get_key_value(*key) else {
                return spans;
            };
            match value.get_ref() {
                DeValue::Table(inner) => {
                    table = inner;
                    // A key can be inserted only below the header of the innermost table.
                    if index + 2 == path.len() {
                        spans.table = Some(name.span().end);
                    }
                }
                _ if index + 1 == path.len() => spans.value = Some(value.span()),
                _ => return spans,
            }
        }
        spans
    }
}

fn insert(table: &mut Table, path: &[&str], value: &str) -> Option<()> {
    let (last, parents) = path.split_last()?;
    let mut table = table;
    for key in parents {
        table = table
            .entry((*key).to_owned())
            .or_insert_with(|| Table::new().into())
            .as_table_mut()?;
    }
    table.insert((*last).to_owned(), value.into());
    Some(())
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn splice(text: &str, start: usize, end: usize, with: &str) -> String {
    format!("{}{with}{}", &text[..start], &text[end..])
}

/// Returns the white space at the start of the line that contains a byte.
fn indent_of(text: &str, offset: usize) -> &str {
    let start = text[..offset].rfind('\n').map_or(0, |at| at + 1);
    let line = &text[start..];
    &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
}

/// Returns the text as a TOML string with quotes.
pub(crate) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn bare_or_quoted(key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if bare { key.to_owned() } else { quoted(key) }
}
