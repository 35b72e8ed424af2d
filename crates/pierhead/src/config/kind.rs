//! The type [`Kind`]: TOML type and valid range of the value of a configuration key. The parser,
//! the reference page and the JSON schema use [`Kind`].

use std::time::Duration;

#[cfg(test)]
use serde_json::{Value as Json, json};

use pierhead_oci::units::exact_bytes;

/// TOML type and valid range of the value of a configuration key.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Boolean,
    /// A whole number from `min` to `max`.
    Count {
        min: usize,
        max: usize,
    },
    /// A number of bytes, at least `min` and at most `max`.
    Bytes {
        min: u64,
        max: Option<u64>,
    },
    /// A number of bytes of at least `min`, a share of the file system from 1 % to `max_percent`,
    /// or one of `words`.
    Size {
        min: u64,
        max_percent: u8,
        words: &'static [&'static str],
    },
    /// A number of bytes as for [`Kind::Bytes`], or `"off"`.
    BytesOrOff {
        min: u64,
        max: u64,
    },
    /// A rate in bytes per second, or `"off"`.
    Rate,
    Duration {
        min: Duration,
        max: Duration,
    },
    /// One of the names in the list. `noun` says what they name, for error messages.
    Choice {
        noun: &'static str,
        names: fn() -> Vec<&'static str>,
    },
    /// A list of some of the names, each at most once.
    Choices {
        noun: &'static str,
        names: fn() -> Vec<&'static str>,
    },
    /// Any text that the help of the key describes.
    Text,
    /// A path. A relative path starts at the folder of the configuration file.
    Path,
    /// A path of a file, or `"off"`.
    PathOrOff,
    /// One socket address `IP:PORT`, or `"off"`.
    AddressOrOff,
    /// One socket address `IP:PORT`, or a list of such addresses.
    Addresses,
    /// One URL, or a list of URLs.
    Urls,
    /// A list of hosts, each as `HOST[:PORT]`.
    Hosts,
    /// A list of patterns, which match registries and repositories.
    Patterns,
    /// A list of names, such as names of users.
    Names,
}

fn duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

impl Kind {
    /// Describes the type and range in words.
    pub(crate) fn phrase(self) -> String {
        let quoted = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
            names.join(", ")
        };
        match self {
            Self::Boolean => "true or false".to_owned(),
            Self::Count { min, max } => format!("number, {min} to {max}"),
            Self::Bytes { min: 0, max: None } => "bytes".to_owned(),
            Self::Bytes { min, max: None } => format!("bytes, {} or more", exact_bytes(min)),
            Self::Bytes {
                min,
                max: Some(max),
            } => format!("bytes, {} to {}", exact_bytes(min), exact_bytes(max)),
            Self::Size {
                min,
                max_percent,
                words,
            } => {
                let min = match min {
                    0 => String::new(),
                    min => format!(" ({} or more)", exact_bytes(min)),
                };
                let words = match words {
                    [] => String::new(),
                    words => format!(", {}", quoted(words)),
                };
                format!("bytes{min}, \"1%\" to \"{max_percent}%\"{words}")
            }
            Self::BytesOrOff { min, max } => {
                format!(
                    "bytes, {} to {}, or \"off\"",
                    exact_bytes(min),
                    exact_bytes(max)
                )
            }
            Self::Rate => "bytes per second, or \"off\"".to_owned(),
            Self::Duration { min, max } => {
                format!("duration, {} to {}", duration(min), duration(max))
            }
            Self::Choice { names, .. } => quoted(&names()),
            Self::Choices { names, .. } => format!("list of {}", quoted(&names())),
            Self::Text => "text".to_owned(),
            Self::Path => "path".to_owned(),
            Self::PathOrOff => "path, or \"off\"".to_owned(),
            Self::AddressOrOff => "IP:PORT, or \"off\"".to_owned(),
            Self::Addresses => "IP:PORT, or a list of them".to_owned(),
            Self::Urls => "URL, or a list of them".to_owned(),
            Self::Hosts => "list of hosts".to_owned(),
            Self::Patterns => "list of patterns".to_owned(),
            Self::Names => "list of names".to_owned(),
        }
    }

    /// Returns the JSON schema of the value, for the generated schema file. The schema checks types
    /// only; `pierhead config check` also checks ranges.
    #[cfg(test)]
    pub(crate) fn schema(self) -> Json {
        let text = || json!({"type": "string", "minLength": 1});
        let list = |items: Json| json!({"type": "array", "items": items});
        match self {
            Self::Boolean => json!({"type": "boolean"}),
            Self::Count { min, max } => json!({"type": "integer", "minimum": min, "maximum": max}),
            Self::Choice { names, .. } => json!({"enum": names()}),
            Self::Choices { names, .. } => {
                json!({"type": "array", "items": {"enum": names()}, "uniqueItems": true})
            }
            Self::Addresses | Self::Urls => {
                json!({"type": ["string", "array"], "items": text(), "minItems": 1, "minLength": 1})
            }
            Self::Hosts | Self::Patterns | Self::Names => list(text()),
            Self::Bytes { .. }
            | Self::Size { .. }
            | Self::BytesOrOff { .. }
            | Self::Rate
            | Self::Duration { .. }
            | Self::Text
            | Self::Path
            | Self::PathOrOff
            | Self::AddressOrOff => text(),
        }
    }
}
