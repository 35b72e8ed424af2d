//! N-Docker's hot image files, the static part: which layers hold what a start executes.

use super::Placement;

/// A cold start touches the execution engine (the interpreter or server that is started, with its runtime) and the
/// application, and little of the rest (N-Docker 2019, "Hot Image Files"). Which layers brought them is told by the
/// image's build history and by its config: the program that is started, the variables that name its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HotImageFiles;

/// One entry of an image's history that made a layer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The instruction or the command, as the builder noted it (`created_by`).
    pub created_by: String,
}

/// What is started, from the image's config.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// Entrypoint and command, in this order.
    pub arguments: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
}

/// What a start has to do with a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temperature {
    /// It brought the program that is started, or its runtime.
    Engine,
    /// It brought the application.
    Application,
    /// Nothing is known that a start would need of it.
    Cold,
}

impl Temperature {
    /// Where such a layer goes.
    pub fn place(self) -> Placement {
        match self {
            Self::Engine | Self::Application => Placement::Fast,
            Self::Cold => Placement::Disk,
        }
    }
}

/// Words of a text that are looked at, and bytes of each: history is whatever a stranger wrote.
const MAX_WORDS: usize = 4096;
const MAX_WORD: usize = 256;
/// Names that a start goes by, at most.
const MAX_NAMES: usize = 64;

/// They start what is meant, and are in every image.
const SHELLS: [&str; 8] = [
    "sh",
    "bash",
    "ash",
    "dash",
    "env",
    "exec",
    "tini",
    "dumb-init",
];

impl HotImageFiles {
    /// The temperature of each layer, the lowest first; `None` when the history tells of another number of layers.
    pub fn judge(&self, layers: usize, steps: &[Step], start: &Start) -> Option<Vec<Temperature>> {
        if steps.len() != layers {
            return None;
        }
        let names = names(start);
        let versions: Vec<_> = versions(start, &names).collect();
        let temperature = |step: &Step| {
            let mut words = words(&step.created_by);
            // An older builder writes `/bin/sh -c #(nop) COPY`.
            let copies = words
                .by_ref()
                .take(5)
                .find(|word| matches!(*word, "COPY" | "ADD"));
            match copies {
                // What is unpacked into the root is the base.
                Some("ADD") if words.any(|word| word == "/") => return Temperature::Cold,
                // What an author copies into an image is the application.
                Some(_) => return Temperature::Application,
                None => {}
            }
            let engine = self::words(&step.created_by).any(|word| {
                versions
                    .iter()
                    .any(|version| word.contains(version.as_str()))
                    || names.iter().any(|name| begins(base(word), name))
            });
            if engine {
                Temperature::Engine
            } else {
                Temperature::Cold
            }
        };
        Some(steps.iter().map(temperature).collect())
    }
}

/// What is started, by its stem: `/usr/bin/python3.11` is `python`, `redis-server` is `redis`.
fn names(start: &Start) -> Vec<String> {
    let all = start.arguments.iter().flat_map(|argument| words(argument));
    let mut names = Vec::new();
    for word in all.take(MAX_WORDS) {
        if word.starts_with('-') || SHELLS.contains(&base(word)) {
            continue;
        }
        let name: String = base(word)
            .chars()
            .take_while(|it| it.is_ascii_alphabetic())
            .collect();
        // Shorter ones are in every text.
        if name.len() >= 3 && names.len() < MAX_NAMES && name != "docker" && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// Variables that say which version of what is started was built in: `PYTHON_VERSION` for `python`.
fn versions(start: &Start, names: &[String]) -> impl Iterator<Item = String> {
    let variables = start.environment.iter().take(MAX_WORDS);
    let named = variables.filter_map(|line| line.split_once('=').map(|(name, _)| name.to_owned()));
    named.filter(|variable| {
        let lower = variable.to_ascii_lowercase();
        variable.len() <= MAX_WORD && names.iter().any(|name| begins(&lower, name))
    })
}

/// The words of a command, options and their values apart.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let parted = text.split(|it: char| it.is_whitespace() || ";&|()[]{}\"',=".contains(it));
    parted
        .filter(|word| !word.is_empty() && word.len() <= MAX_WORD)
        .take(MAX_WORDS)
}

/// The last part of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether `word` is `name`, or `name` with something behind it that is no letter.
fn begins(word: &str, name: &str) -> bool {
    word.strip_prefix(name)
        .is_some_and(|rest| !rest.starts_with(|it: char| it.is_ascii_alphabetic()))
}
