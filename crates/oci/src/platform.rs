//! Platforms (operating system, architecture, variant), and the choice of the entry of an index
//! that a platform can run.

use std::fmt;
use std::str::FromStr;

use crate::{Descriptor, ParseError};

/// The platform of an image in an index, with the names that Go uses for its variables GOOS and
/// GOARCH.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Platform {
    /// The operating system, such as `linux`.
    pub os: String,
    /// The CPU architecture, such as `amd64` or `arm64`.
    pub architecture: String,
    /// The variant of the architecture, such as `v8`.
    pub variant: Option<String>,
}

impl Platform {
    /// Whether the platform is `unknown/unknown`. BuildKit gives this platform to attestations,
    /// which are not images that can run.
    pub fn is_unknown(&self) -> bool {
        self.os == "unknown" || self.architecture == "unknown"
    }

    /// Returns the platform that the config of an image names. `None` if the config names no
    /// platform, like the config of an artifact.
    pub fn of_config(config: &[u8]) -> Option<Self> {
        #[derive(serde::Deserialize)]
        struct Config {
            os: String,
            architecture: String,
            variant: Option<String>,
        }
        let found: Config = serde_json::from_slice(config).ok()?;
        let is_named = !found.os.is_empty() && !found.architecture.is_empty();
        is_named.then_some(Self {
            os: found.os,
            architecture: found.architecture,
            variant: found.variant.filter(|variant| !variant.is_empty()),
        })
    }

    /// Whether a machine of this platform runs an image whose config names `offered`. A config
    /// without a variant fits each variant, because many images for `arm` v6 name none.
    pub fn runs(&self, offered: &Self) -> bool {
        let mut offered = offered.clone();
        if offered.variant.as_ref().is_none_or(String::is_empty) {
            offered.variant.clone_from(&self.variant);
        }
        self.clone().normalized().distance(&offered).is_some()
    }

    /// Chooses the entry for a machine of this platform: the entry with the same variant, or,
    /// without one, the entry with the newest older variant (`arm` v7 runs v6 and v5). Among equal
    /// entries, chooses the first entry.
    pub fn choose<'a>(&self, entries: &'a [Descriptor]) -> Option<&'a Descriptor> {
        let wanted = self.clone().normalized();
        let runs = |entry: &&Descriptor| {
            entry
                .platform
                .as_ref()
                .and_then(|offered| wanted.distance(offered))
        };
        // Entries of other platforms have no distance, so the filter removes them first.
        entries
            .iter()
            .filter_map(|entry| Some((runs(&entry)?, entry)))
            .min_by_key(|(d, _)| *d)
            .map(|(_, entry)| entry)
    }

    /// Returns the number of variants between this (normalized) platform and `offered`. `None` if
    /// this platform cannot run images of `offered`.
    fn distance(&self, offered: &Self) -> Option<u32> {
        let offered = offered.clone().normalized();
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
        let (own_level, offered_level) = (level(self)?, level(&offered)?);
        (oldest <= offered_level)
            .then(|| own_level.checked_sub(offered_level))
            .flatten()
    }

    /// Converts the different spellings of a platform into one spelling, in the same way as
    /// container runtimes. Omits the variant that an architecture implies (`arm64` v8, `amd64` v1).
    /// `arm` without a variant becomes v7.
    fn normalized(mut self) -> Self {
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

/// Parses `os/architecture` or `os/architecture/variant`, and normalizes the spelling.
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
        .normalized())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_of_a_config_is_that_of_the_image() {
        let of = |text: &str| Platform::of_config(text.as_bytes());
        let arm = of(r#"{"os": "linux", "architecture": "arm", "variant": "v6"}"#);
        let arm = arm.expect("a platform");
        assert_eq!(arm.to_string(), "linux/arm/v6");
        let empty = of(r#"{"os": "linux", "architecture": "amd64", "variant": ""}"#);
        assert_eq!(empty.expect("a platform").to_string(), "linux/amd64");
        let runs = |text: &str| text.parse::<Platform>().expect("a platform").runs(&arm);
        assert!(runs("linux/arm/v7") && !runs("linux/arm/v5") && !runs("linux/arm64"));
        for config in [
            r#"{"os": "linux", "architecture": "arm"}"#,
            r#"{"os": "linux", "architecture": "arm", "variant": ""}"#,
        ] {
            let any = of(config).expect("a platform");
            let runs = |text: &str| text.parse::<Platform>().expect("a platform").runs(&any);
            assert!(runs("linux/arm/v6") && runs("linux/arm/v7") && !runs("linux/arm64"));
        }
        for none in ["{}", "", r#"{"os": "", "architecture": ""}"#] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
