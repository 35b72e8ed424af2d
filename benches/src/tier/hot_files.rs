//! Guesses from the build history and the config of an image which layers a container start reads,
//! by the static rule "hot image files" of the paper N-Docker.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use pierhead_cache::tier::{Blob, FastMedium, Staged, Tier, TierEntry};
use pierhead_oci::Digest;
use serde::Deserialize;

use super::images::Image;

/// The kind of a layer. A cold start reads mainly the execution engine (interpreter or server with
/// its runtime) and the application (N-Docker 2019, "Hot Image Files"). The build history and the
/// config identify their layers, by the started program and by variables with its version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HotImageFiles;

/// A history entry of an image that created a layer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Step {
    /// The instruction or command (`created_by`).
    pub(super) created_by: String,
}

/// The start command in the image's config.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Start {
    /// Entrypoint and command, in this order.
    pub(super) arguments: Vec<String>,
    /// `NAME=value`.
    pub(super) environment: Vec<String>,
}

/// Whether a start reads a layer, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Temperature {
    /// The layer contains the started program or its runtime.
    Engine,
    /// The layer contains the application.
    Application,
    /// No known file of the layer is read by a container start.
    Cold,
}

/// Maximum number of words of a text, and maximum length of a word in bytes. The history is
/// untrusted input.
const MAX_WORDS: usize = 4096;
const MAX_WORD: usize = 256;
/// Maximum number of names of a started program.
const MAX_NAMES: usize = 64;

/// Shells and wrappers, which start the actual program and are in every image.
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
    /// The temperature of each layer, lowest first; `None` when the history has another number of
    /// layers.
    pub(super) fn judge(
        &self,
        layers: usize,
        steps: &[Step],
        start: &Start,
    ) -> Option<Vec<Temperature>> {
        if steps.len() != layers {
            return None;
        }
        let names = names(start);
        let versions: Vec<_> = versions(start, &names).collect();
        let temperature = |step: &Step| {
            let mut words = words(&step.created_by);
            // An older image builder writes `/bin/sh -c #(nop) COPY`.
            let copies = words
                .by_ref()
                .take(5)
                .find(|word| matches!(*word, "COPY" | "ADD"));
            match copies {
                // An archive that is unpacked into the root folder is the base image.
                Some("ADD") if words.any(|word| word == "/") => return Temperature::Cold,
                // Files that the author copies into the image are the application.
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

/// The stems of the started programs: `/usr/bin/python3.11` is `python`, `redis-server` is `redis`.
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
        // Names of one or two letters occur in every text.
        if name.len() >= 3 && names.len() < MAX_NAMES && name != "docker" && !names.contains(&name)
        {
            names.push(name);
        }
    }
    names
}

/// Variables with the version of the started program: `PYTHON_VERSION` for `python`.
fn versions(start: &Start, names: &[String]) -> impl Iterator<Item = String> {
    let variables = start.environment.iter().take(MAX_WORDS);
    let named = variables.filter_map(|line| line.split_once('=').map(|(name, _)| name.to_owned()));
    named.filter(|variable| {
        let lower = variable.to_ascii_lowercase();
        variable.len() <= MAX_WORD && names.iter().any(|name| begins(&lower, name))
    })
}

/// The words of a command, without separators of options and values.
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

/// Whether `word` is `name`, or begins with `name` and a character that is not a letter.
fn begins(word: &str, name: &str) -> bool {
    word.strip_prefix(name)
        .is_some_and(|rest| !rest.starts_with(|it: char| it.is_ascii_alphabetic()))
}

/// The relevant fields of an image's config.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    history: Vec<HistoryEntry>,
    config: Option<Settings>,
}

#[derive(Deserialize)]
struct HistoryEntry {
    #[serde(default)]
    created_by: String,
    #[serde(default)]
    empty_layer: bool,
}

#[derive(Default, Deserialize)]
struct Settings {
    #[serde(rename = "Entrypoint")]
    entrypoint: Option<Vec<String>>,
    #[serde(rename = "Cmd")]
    command: Option<Vec<String>>,
    #[serde(rename = "Env")]
    environment: Option<Vec<String>>,
}

/// The layers of an image that a start reads, by its config.
pub(super) fn hot_layers(image: &Image) -> HashSet<Digest> {
    let Ok(document) = serde_json::from_slice::<Document>(&image.config.1) else {
        return HashSet::new();
    };
    let made = document.history.into_iter().filter(|it| !it.empty_layer);
    let steps: Vec<_> = made
        .map(|HistoryEntry { created_by, .. }| Step { created_by })
        .collect();
    let settings = document.config.unwrap_or_default();
    let (entrypoint, command) = (settings.entrypoint, settings.command);
    let start = Start {
        arguments: entrypoint.into_iter().chain(command).flatten().collect(),
        environment: settings.environment.unwrap_or_default(),
    };
    let judged = HotImageFiles.judge(image.layers.len(), &steps, &start);
    let judged = judged.unwrap_or_default();
    let hot = image.layers.iter().zip(judged);
    hot.filter(|(_, temperature)| *temperature != Temperature::Cold)
        .map(|((digest, _), _)| *digest)
        .collect()
}

/// A fast tier that refuses the cold layers of an image, so that they are stored on disk.
pub(super) struct HotTier {
    pub(super) below: Arc<dyn FastMedium>,
    pub(super) cold: HashSet<Digest>,
}

impl Tier for HotTier {
    fn stage(&self, digest: &Digest) -> io::Result<Box<dyn Staged>> {
        match self.cold.contains(digest) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.below.stage(digest),
        }
    }

    fn discard(&self, digest: &Digest) -> io::Result<()> {
        self.below.discard(digest)
    }

    fn open(&self, digest: &Digest) -> io::Result<Option<Arc<dyn Blob>>> {
        self.below.open(digest)
    }

    fn remove(&self, digest: &Digest) -> io::Result<()> {
        self.below.remove(digest)
    }

    fn scan(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.below.scan(visit)
    }

    fn scan_staged(&self, visit: &mut dyn FnMut(TierEntry)) -> io::Result<()> {
        self.below.scan_staged(visit)
    }

    fn free(&self) -> io::Result<u64> {
        self.below.free()
    }
}

impl FastMedium for HotTier {
    fn footprint(&self, bytes: u64) -> u64 {
        self.below.footprint(bytes)
    }

    fn release(&self) -> io::Result<u64> {
        self.below.release()
    }

    fn hot_copies(&self) -> io::Result<Arc<dyn Tier>> {
        self.below.hot_copies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(texts: &[&str]) -> Vec<Step> {
        let step = |text: &&str| Step {
            created_by: (*text).to_owned(),
        };
        texts.iter().map(step).collect()
    }

    #[test]
    fn the_history_identifies_engine_and_application() {
        use Temperature::{Application, Cold, Engine};
        let start = Start {
            arguments: vec!["python3".into(), "-m".into(), "flask".into(), "run".into()],
            environment: vec!["PATH=/usr/bin".into(), "PYTHON_VERSION=3.11.4".into()],
        };
        let history = steps(&[
            "/bin/sh -c #(nop) ADD file:abc in / ",
            "RUN /bin/sh -c apt-get install -y ca-certificates netbase tzdata",
            "RUN /bin/sh -c wget -O p.tar.xz \"https://host/$PYTHON_VERSION/x\" && make",
            "RUN /bin/sh -c pip install flask",
            "COPY . /app # buildkit",
        ]);
        assert_eq!(
            HotImageFiles.judge(5, &history, &start),
            Some(vec![Cold, Cold, Engine, Engine, Application])
        );
        assert_eq!(HotImageFiles.judge(4, &history, &start), None);
        let server = Start {
            arguments: vec![
                "docker-entrypoint.sh".into(),
                "/usr/bin/redis-server".into(),
            ],
            ..Start::default()
        };
        let history = steps(&[
            "RUN groupadd redisson",
            "RUN make -C /usr/src/redis",
            "/bin/sh -c #(nop) COPY file:1 in /",
        ]);
        assert_eq!(
            HotImageFiles.judge(3, &history, &server),
            Some(vec![Cold, Engine, Application])
        );
    }
}
