//! Platforms, and the choice of one from an index.

use std::fmt;
use std::str::FromStr;

use crate::{Descriptor, ParseError};

/// What an index says of an entry, in the words of GOOS and GOARCH.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Platform {
    /// `linux`, …
    pub os: String,
    /// `amd64`, `arm64`, …
    pub architecture: String,
    /// `v8`, …
    pub variant: Option<String>,
}

impl Platform {
    /// `unknown/unknown`: how BuildKit marks attestations, which nobody can run.
    pub fn is_unknown(&self) -> bool {
        self.os == "unknown" || self.architecture == "unknown"
    }

    /// The entry that a machine of this platform runs: the same variant, else the newest older
    /// one (`arm` v7 runs v6 and v5). The first in the index wins among equals.
    pub fn choose<'a>(&self, entries: &'a [Descriptor]) -> Option<&'a Descriptor> {
        let wanted = self.clone().normalised();
        let runs = |entry: &&Descriptor| {
            entry
                .platform
                .as_ref()
                .and_then(|offered| wanted.distance(offered))
        };
        // Not `min_by_key` over all: entries of other platforms have no distance.
        entries
            .iter()
            .filter_map(|entry| Some((runs(&entry)?, entry)))
            .min_by_key(|(d, _)| *d)
            .map(|(_, entry)| entry)
    }

    /// How far an image built for `offered` is from the best that this (normalised) one runs.
    fn distance(&self, offered: &Self) -> Option<u32> {
        let offered = offered.clone().normalised();
        if self.os != offered.os || self.architecture != offered.architecture || self.is_unknown() {
            return None;
        }
        if self.variant == offered.variant {
            return Some(0);
        }
        let oldest = match &*self.architecture {
            "arm" => 5,
            "arm64" => 8,
            "amd64" => 1,
            _ => return None,
        };
        let level = |platform: &Self| -> Option<u32> {
            platform
                .variant
                .as_deref()
                .map_or(Some(oldest), |v| v.strip_prefix('v')?.parse().ok())
        };
        let (mine, theirs) = (level(self)?, level(&offered)?);
        (oldest <= theirs)
            .then(|| mine.checked_sub(theirs))
            .flatten()
    }

    /// One spelling for what has several, as the container runtimes have it: the variant that an
    /// architecture implies (`arm64` v8, `amd64` v1) is left out, and bare `arm` means v7.
    fn normalised(mut self) -> Self {
        self.os.make_ascii_lowercase();
        self.architecture.make_ascii_lowercase();
        let mut variant = self
            .variant
            .take()
            .map(|v| v.to_ascii_lowercase())
            .filter(|v| !v.is_empty());
        if let Some(v) = variant.take_if(|v| v.starts_with(|c: char| c.is_ascii_digit())) {
            variant = Some(format!("v{v}"));
        }
        let (architecture, variant) = match (&*self.architecture, variant.as_deref()) {
            ("x86_64" | "x86-64" | "amd64", None | Some("v1")) => ("amd64", None),
            ("x86_64" | "x86-64", _) => ("amd64", variant),
            ("i386" | "i486" | "i586" | "i686" | "x86", _) => ("386", None),
            ("aarch64" | "arm64", None | Some("v8" | "v8.0")) => ("arm64", None),
            ("aarch64", _) => ("arm64", variant),
            ("armhf", _) | ("arm", None) => ("arm", Some("v7".into())),
            ("armel", _) => ("arm", Some("v6".into())),
            _ => return Self { variant, ..self },
        };
        Self {
            os: self.os,
            architecture: architecture.into(),
            variant,
        }
    }
}

/// `os/architecture` or `os/architecture/variant`, in one spelling.
impl FromStr for Platform {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let word = |part: &&str| {
            (1..=64).contains(&part.len())
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        let mut parts = text.splitn(3, '/');
        let (os, architecture) = (parts.next(), parts.next());
        let (Some(os), Some(architecture)) = (os.filter(word), architecture.filter(word)) else {
            return Err(ParseError::Platform);
        };
        let variant = match parts.next() {
            Some(variant) => Some(
                Some(variant)
                    .filter(word)
                    .ok_or(ParseError::Platform)?
                    .into(),
            ),
            None => None,
        };
        Ok(Self {
            os: os.into(),
            architecture: architecture.into(),
            variant,
        }
        .normalised())
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant
            .iter()
            .try_for_each(|variant| write!(f, "/{variant}"))
    }
}
