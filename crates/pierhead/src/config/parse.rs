//! Parses the TOML text of the configuration file. Reports all problems at once, each with its
//! line.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key_locations::Lines;
use super::keys::{Key, SECTIONS, UPSTREAM_KEYS, UPSTREAMS, keys};
use super::suggestion::suggest;
use super::value::{Value, registry_name};
use super::{Config, Problem, Upstream};

/// Parses `text`. Keys that `text` does not set keep their value of `defaults`. Relative paths
/// start at `base`. Does no I/O and never panics.
pub(crate) fn parse(
    text: &str,
    base: &Path,
    defaults: Config,
) -> Result<(Config, Lines), Vec<Problem>> {
    let document = DeTable::parse(text).map_err(|error| {
        let line = match error.span() {
            Some(span) => line_of(text, span.start),
            None => line_of_error(text, error.message()),
        };
        // The parser does not name the key. Other errors could quote a secret.
        let key = error.span().and_then(|span| text.get(span));
        let message = match (error.message(), key) {
            ("duplicate key", Some(key)) => {
                format!("duplicate key {key}: merge the two into one")
            }
            // No key of pierhead needs more than a list in a table.
            (message, _) if message.contains("recurs") => {
                "lists or tables are nested too deeply: no key of pierhead has a list inside a list"
                    .to_owned()
            }
            (message, _) => message.to_owned(),
        };
        vec![Problem::new(Some(line), message)]
    })?;
    let mut reader = Reader {
        text,
        base,
        config: defaults,
        lines: Lines::new(),
        problems: Vec::new(),
    };
    reader.document(document.get_ref());
    reader.problems.sort_by_key(|problem| problem.line);
    if reader.problems.is_empty() {
        Ok((reader.config, reader.lines))
    } else {
        Err(reader.problems)
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

/// Returns the line of an error for which the parser has no position: the first line after which
/// the text so far has this error.
fn line_of_error(text: &str, message: &str) -> usize {
    let ends: Vec<_> = text.match_indices('\n').map(|(at, _)| at).collect();
    let is_before = |end: &usize| match DeTable::parse(&text[..*end]) {
        Ok(_) => true,
        Err(error) => error.message() != message,
    };
    1 + ends.partition_point(is_before)
}

type Entry<'a, 'i> = (
    &'a Spanned<std::borrow::Cow<'i, str>>,
    &'a Spanned<DeValue<'i>>,
);

struct Reader<'a> {
    text: &'a str,
    base: &'a Path,
    config: Config,
    lines: Lines,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, offset: usize, message: String) {
        let line = line_of(self.text, offset);
        self.problems.push(Problem::new(Some(line), message));
    }

    fn document(&mut self, table: &DeTable<'_>) {
        for entry in table {
            let name = entry.0.get_ref().as_ref();
            let is_section = SECTIONS.iter().any(|(section, _)| *section == name);
            match entry.1.get_ref() {
                DeValue::Table(inner) if is_section => self.section(name, inner),
                DeValue::Table(inner) if name == UPSTREAMS => self.upstreams(inner),
                _ if is_section || name == UPSTREAMS => {
                    self.problem(
                        entry.0.span().start,
                        format!(
                            "{name} is a table: write [{name}] on its own line, and its keys below"
                        ),
                    );
                }
                _ => self.key("", entry),
            }
        }
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for entry in table {
            self.key(section, entry);
        }
    }

    fn key(&mut self, section: &str, entry: Entry<'_, '_>) {
        let name = entry.0.get_ref().as_ref();
        let Some(key) = keys().find(|key| key.section == section && key.name == name) else {
            let path = if section.is_empty() {
                name.to_owned()
            } else {
                format!("{section}.{name}")
            };
            let known = keys()
                .map(Key::path)
                .chain(SECTIONS.iter().map(|(name, _)| (*name).to_owned()));
            let message = unknown(&path, known.chain([UPSTREAMS.to_owned()]));
            return self.problem(entry.0.span().start, message);
        };
        self.lines
            .insert(key.path(), line_of(self.text, entry.0.span().start));
        let value = Value {
            toml: entry.1.get_ref(),
            base: self.base,
            kind: key.kind,
        };
        if let Err(message) = (key.set)(&mut self.config, &value) {
            self.problem(entry.1.span().start, format!("{}: {message}", key.path()));
        }
    }

    fn upstreams(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let offset = name.span().start;
            let text = name.get_ref().as_ref();
            if UPSTREAM_KEYS.iter().any(|key| key.name == text) && !value.get_ref().is_table() {
                let message = format!(
                    "{text} is a key of one upstream: write [{UPSTREAMS}.\"REGISTRY\"] above it, such as \
                     [{UPSTREAMS}.\"docker.io\"]"
                );
                self.problem(offset, message);
                continue;
            }
            let DeValue::Table(keys) = value.get_ref() else {
                self.problem(offset, format!("{UPSTREAMS}.{text} is a table: write [{UPSTREAMS}.{text:?}] on its own line, and its keys below"));
                continue;
            };
            if let Some((rest, _)) = keys.iter().find(|(_, value)| value.get_ref().is_table()) {
                let whole = format!("{text}.{}", rest.get_ref());
                self.problem(
                    offset,
                    format!(
                        "a registry name with a dot needs quotes: write [{UPSTREAMS}.{whole:?}]"
                    ),
                );
                continue;
            }
            let registry = match registry_name(text) {
                Ok(registry) => registry,
                Err(message) => {
                    self.problem(offset, format!("[{UPSTREAMS}.{text:?}]: {message}"));
                    continue;
                }
            };
            let mut upstream = Upstream::default();
            for entry in keys {
                self.upstream_key(text, &mut upstream, entry);
            }
            self.lines.insert(
                format!("{UPSTREAMS}.{registry}"),
                line_of(self.text, offset),
            );
            if self
                .config
                .upstreams
                .insert(registry.clone(), upstream)
                .is_some()
            {
                self.problem(offset, format!("{text:?} is another name of {registry}, which is already configured: keep one of them"));
            }
        }
    }

    fn upstream_key(&mut self, registry: &str, upstream: &mut Upstream, entry: Entry<'_, '_>) {
        let name = entry.0.get_ref().as_ref();
        let Some(key) = UPSTREAM_KEYS.iter().find(|key| key.name == name) else {
            let message = unknown(name, UPSTREAM_KEYS.iter().map(Key::path));
            return self.problem(
                entry.0.span().start,
                format!("[{UPSTREAMS}.{registry:?}]: {message}"),
            );
        };
        let value = Value {
            toml: entry.1.get_ref(),
            base: self.base,
            kind: key.kind,
        };
        if let Err(message) = (key.set)(upstream, &value) {
            self.problem(
                entry.1.span().start,
                format!("[{UPSTREAMS}.{registry:?}] {name}: {message}"),
            );
        }
    }
}

fn unknown(path: &str, known: impl Iterator<Item = String>) -> String {
    match suggest(path, known) {
        Some(near) => format!("unknown key {path:?}: did you mean {near:?}?"),
        None => format!("unknown key {path:?}: `pierhead config show --default` lists all keys"),
    }
}
